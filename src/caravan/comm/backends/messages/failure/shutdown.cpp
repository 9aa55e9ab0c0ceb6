#include "caravan/comm/backends/messages/failure/shutdown.h"

#include <algorithm>
#include <vector>

#include "caravan/comm/backends/messages/failure/connection_watch.h"

namespace caravan::messages {
namespace {

constexpr std::byte kClean{1};
constexpr std::byte kUnclean{0};

}  // namespace

Shutdown::Shutdown(Group group, bool is_clean)
    : MessageTask(std::make_shared<Operation>()), group_(std::move(group)), notice_(is_clean ? kClean : kUnclean) {}

void Shutdown::run(TaskThread& thread) {
  std::vector<std::byte> notices(static_cast<size_t>(group_.size), notice_);
  MessageExchange exchange(thread, *group_.transport, group_.world_ranks, group_.tag(Channel::shutdown));
  if (group_.transport->reports_lost_peers()) {
    for (const int peer : ConnectionWatch::watchers_of(group_.rank, group_.size)) {
      exchange.send(peer, &notice_, 1, ConnectionWatch::tag());
    }
  }
  for (int peer = 0; peer < group_.size; ++peer) {
    if (peer == group_.rank) continue;
    exchange.recv(peer, &notices[static_cast<size_t>(peer)], 1);
    exchange.send(peer, &notice_, 1);
  }
  exchange.finish();
  all_are_clean_ = std::ranges::all_of(notices, [](std::byte notice) { return notice == kClean; });
}

}  // namespace caravan::messages
