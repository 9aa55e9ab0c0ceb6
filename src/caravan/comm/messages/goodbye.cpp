#include "caravan/comm/messages/goodbye.h"

#include <algorithm>
#include <vector>

#include "caravan/comm/messages/watch.h"

namespace caravan::messages {
namespace {

constexpr std::byte kClean{1};
constexpr std::byte kUnclean{0};

}  // namespace

Goodbye::Goodbye(Seat seat, bool is_clean)
    : Job(std::make_shared<Operation>()), seat_(std::move(seat)), own_(is_clean ? kClean : kUnclean) {}

void Goodbye::run(Lane& lane) {
  std::vector<std::byte> letters(static_cast<size_t>(seat_.size), own_);
  Exchange exchange(lane, *seat_.transport, seat_.world_ranks, seat_.tag(Channel::goodbye));
  if (seat_.transport->reports_lost_peers()) {
    for (const int peer : Watch::watchers_of(seat_.rank, seat_.size)) exchange.send(peer, &own_, 1, Watch::tag());
  }
  for (int peer = 0; peer < seat_.size; ++peer) {
    if (peer == seat_.rank) continue;
    exchange.recv(peer, &letters[static_cast<size_t>(peer)], 1);
    exchange.send(peer, &own_, 1);
  }
  exchange.finish();
  all_are_clean_ = std::ranges::all_of(letters, [](std::byte letter) { return letter == kClean; });
}

}  // namespace caravan::messages
