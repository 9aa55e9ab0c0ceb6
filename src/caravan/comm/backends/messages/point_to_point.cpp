#include "caravan/comm/backends/messages/point_to_point.h"

#include <cstring>

#include "caravan/comm/calls/call_errors.h"

namespace caravan::messages {
namespace {

constexpr int64_t kMaxCopiedBytes = 64 * 1024;

/// Sender and receiver exchange and compare their calls.
void check_pair(TaskThread& thread, const Group& group, const Descriptor& own, int peer, bool sends) {
  Descriptor other;
  MessageExchange calls(thread, *group.transport, group.world_ranks, 0);
  const int call = group.tag(Channel::send_call);
  const int answer = group.tag(Channel::recv_call);
  calls.recv(peer, reinterpret_cast<std::byte*>(&other), sizeof(other), sends ? answer : call);
  calls.send(peer, reinterpret_cast<const std::byte*>(&own), sizeof(own), sends ? call : answer);
  calls.finish();
  const auto error = sends ? message_error(group, own, group.rank, other, peer, true)
                           : message_error(group, other, peer, own, group.rank, true);
  if (error != nullptr) std::rethrow_exception(error);
}

}  // namespace

SendTask::SendTask(const Group& group, std::shared_ptr<Operation> operation)
    : MessageTask(std::move(operation)),
      group_(group),
      data_(static_cast<const std::byte*>(operation_->in.data)),
      bytes_(operation_->in.count * size_bytes(operation_->dtype)) {
  if (bytes_ > kMaxCopiedBytes) return;
  copy_ = std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(bytes_));
  if (bytes_ > 0) std::memcpy(copy_.get(), data_, static_cast<size_t>(bytes_));
  data_ = copy_.get();
}

void SendTask::run(TaskThread& thread) {
  const int peer = call_.root;
  if (group_.check) check_pair(thread, group_, call_, peer, true);
  MessageExchange message(thread, *group_.transport, group_.world_ranks, group_.tag(Channel::point_to_point));
  message.send(peer, data_, bytes_);
  message.finish();
}

void RecvTask::run(TaskThread& thread) {
  const int peer = call_.root;
  if (group_.check) check_pair(thread, group_, call_, peer, false);
  MessageExchange message(thread, *group_.transport, group_.world_ranks, group_.tag(Channel::point_to_point));
  const int64_t bytes = operation_->out.count * size_bytes(operation_->dtype);
  message.recv(peer, static_cast<std::byte*>(operation_->out.data), bytes);
  message.finish();
}

}  // namespace caravan::messages
