#include "caravan/comm/messages/mail.h"

#include <cstring>

#include <fmt/format.h>

#include "caravan/comm/call_errors.h"

namespace caravan::messages {
namespace {

constexpr int64_t kCopied = 64 * 1024;  // bytes

/// Shows both sides' calls to each other.
void check_pair(Lane& lane, const Seat& seat, const Descriptor& own, int peer, bool sends) {
  Descriptor other;
  Exchange calls(lane, *seat.transport, seat.world_ranks, 0);
  const int call = seat.tag(Channel::mail_call);
  const int answer = seat.tag(Channel::mail_answer);
  calls.recv(peer, reinterpret_cast<std::byte*>(&other), sizeof(other), sends ? answer : call);
  calls.send(peer, reinterpret_cast<const std::byte*>(&own), sizeof(own), sends ? call : answer);
  calls.finish();
  if (other.dtype == own.dtype && other.count == own.count) return;
  const Descriptor& sent = sends ? own : other;
  const Descriptor& expected = sends ? other : own;
  const int sender = sends ? seat.rank : peer;
  const int receiver = sends ? peer : seat.rank;
  std::rethrow_exception(mismatch_error(seat, own,
                                        fmt::format("the calls of sender and receiver differ: rank {}: {}; rank {}: {}",
                                                    sender, to_string(sent), receiver, to_string(expected))));
}

}  // namespace

SendMail::SendMail(const Seat& seat, std::shared_ptr<Operation> operation)
    : Job(std::move(operation)),
      seat_(seat),
      data_(static_cast<const std::byte*>(operation_->in.data)),
      bytes_(operation_->in.count * size_bytes(operation_->dtype)) {
  if (bytes_ > kCopied) return;
  copy_ = std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(bytes_));
  if (bytes_ > 0) std::memcpy(copy_.get(), data_, static_cast<size_t>(bytes_));
  data_ = copy_.get();
}

void SendMail::run(Lane& lane) {
  const int peer = call_.root;
  if (seat_.check) check_pair(lane, seat_, call_, peer, true);
  Exchange message(lane, *seat_.transport, seat_.world_ranks, seat_.tag(Channel::mail));
  message.send(peer, data_, bytes_);
  message.finish();
}

void RecvMail::run(Lane& lane) {
  const int peer = call_.root;
  if (seat_.check) check_pair(lane, seat_, call_, peer, false);
  Exchange message(lane, *seat_.transport, seat_.world_ranks, seat_.tag(Channel::mail));
  const int64_t bytes = operation_->out.count * size_bytes(operation_->dtype);
  message.recv(peer, static_cast<std::byte*>(operation_->out.data), bytes);
  message.finish();
}

}  // namespace caravan::messages
