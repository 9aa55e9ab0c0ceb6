#include "caravan/comm/backends/messages/message_collective.h"

#include <algorithm>
#include <cstring>

#include "caravan/comm/algorithms/run.h"
#include "caravan/comm/calls/call_errors.h"

namespace caravan::messages {
namespace {

class ExchangePort final : public algorithms::Port {
 public:
  explicit ExchangePort(MessageExchange& exchange) : exchange_(exchange) {}

  void send(int peer, ConstBuffer data) override {
    exchange_.send(peer, static_cast<const std::byte*>(data.data), data.count * size_bytes(data.dtype));
  }
  void recv(int peer, Buffer place) override {
    exchange_.recv(peer, static_cast<std::byte*>(place.data), place.count * size_bytes(place.dtype));
  }
  void finish() override { exchange_.finish(); }
  bool is_done() override { return false; }  // the thread waits

 private:
  MessageExchange& exchange_;
};

}  // namespace

void CallSheet::write(const Descriptor& call, std::span<const int64_t> send_counts,
                      std::span<const int64_t> recv_counts) {
  std::memcpy(words_.data(), &call, sizeof(call));
  std::ranges::copy(send_counts, words_.begin() + kHead);
  std::ranges::copy(recv_counts, words_.begin() + kHead + static_cast<std::ptrdiff_t>(size_));
}

Descriptor CallSheet::descriptor() const {
  Descriptor descriptor;
  std::memcpy(static_cast<void*>(&descriptor), words_.data(), sizeof(descriptor));
  return descriptor;
}

std::vector<CallSheet> exchange_sheets(TaskThread& thread, const Group& group, CallSheet own) {
  std::vector<CallSheet> sheets(static_cast<size_t>(group.size), CallSheet(group.size));
  MessageExchange exchange(thread, *group.transport, group.world_ranks, group.tag(Channel::collective));
  for (int peer = 0; peer < group.size; ++peer) {
    if (peer == group.rank) continue;
    CallSheet& sheet = sheets[static_cast<size_t>(peer)];
    exchange.recv(peer, sheet.data(), sheet.bytes());
    exchange.send(peer, own.data(), own.bytes());
  }
  exchange.finish();
  for (int peer = 0; peer < group.size; ++peer) {
    if (peer == group.rank) continue;
    const size_t at = static_cast<size_t>(peer);
    group.last_calls->note(group.world_ranks[at], sheets[at].descriptor(), group.name);
  }
  sheets[static_cast<size_t>(group.rank)] = std::move(own);
  return sheets;
}

std::string difference_of(std::span<const CallSheet> sheets) {
  std::vector<Descriptor> descriptors;
  for (const CallSheet& sheet : sheets) descriptors.push_back(sheet.descriptor());
  std::vector<CallOf> calls;
  for (size_t rank = 0; rank < sheets.size(); ++rank) {
    calls.push_back({&descriptors[rank], sheets[rank].send_counts(), sheets[rank].recv_counts()});
  }
  return difference(calls);
}

void compare_sheets(const Group& group, const Descriptor& own, std::span<const CallSheet> sheets) {
  const std::string text = difference_of(sheets);
  if (!text.empty()) std::rethrow_exception(mismatch_error(group, own, "the ranks' calls differ: " + text));
}

MessageCollective::MessageCollective(const Group& group, std::shared_ptr<Operation> operation,
                                     const algorithms::Choice& choice)
    : MessageTask(std::move(operation)), group_(group), choice_(choice) {
  if (operation_->verb == Verb::barrier) return;
  call_.algorithm = static_cast<uint8_t>(choice_.algorithm) + 1;
  call_.segment_bytes = static_cast<uint32_t>(choice_.segment_bytes);
}

void MessageCollective::run(TaskThread& thread) {
  // A barrier consists only of the exchange of sheets.
  const bool is_barrier = operation_->verb == Verb::barrier;
  if (group_.check || is_barrier) check(thread);
  if (is_barrier) return;
  algorithms::Run run(algorithms::make_plan(choice_, *operation_, group_.rank, group_.size), *operation_, group_.rank,
                      group_.size, true);
  MessageExchange exchange(thread, *group_.transport, group_.world_ranks, group_.tag(Channel::collective));
  ExchangePort port(exchange);
  run.finish(port);
}

void MessageCollective::check(TaskThread& thread) {
  CallSheet own(group_.size);
  own.write(call(), operation_->send_counts, operation_->recv_counts);
  const std::vector<CallSheet> sheets = exchange_sheets(thread, group_, std::move(own));
  if (group_.check) compare_sheets(group_, call(), sheets);
}

}  // namespace caravan::messages
