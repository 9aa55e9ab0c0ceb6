#include "caravan/comm/messages/watch.h"

#include <exception>

#include "caravan/comm/broken_pipe.h"
#include "caravan/comm/messages/seat.h"

namespace caravan::messages {
namespace {

bool watches(int watcher, int rank, int size) { return watcher != rank && (rank == 0 || (watcher + 1) % size == rank); }

}  // namespace

Watch::Watch(Transport& transport, int rank, int size, Bell& bell) : bell_(bell) {
  for (int peer = 0; peer < size; ++peer) {
    if (!watches(rank, peer, size)) continue;
    auto open = std::make_unique<Open>();
    open->transfer = transport.recv(&open->letter, 1, peer, tag());
    open->thread = std::thread([this, peer, opened = open.get()] { wait(*opened, peer); });
    open_.push_back(std::move(open));
  }
}

Watch::Open::~Open() {
  if (!thread.joinable()) return;
  transfer->interrupt();
  thread.join();
}

std::vector<int> Watch::watchers_of(int rank, int size) {
  std::vector<int> watchers;
  for (int peer = 0; peer < size; ++peer) {
    if (watches(peer, rank, size)) watchers.push_back(peer);
  }
  return watchers;
}

int Watch::tag() noexcept { return Seat().tag(Channel::watch); }

void Watch::wait(Open& open, int peer) {
  const NoBrokenPipeSignal no_signal;
  try {
    open.transfer->wait();  // the goodbye, or the end of this watch
  } catch (const std::exception& exception) {
    {
      const std::lock_guard lock(mutex_);
      if (!lost_) lost_ = LostPeer{peer, exception.what()};
    }
    has_news_ = true;
    bell_.ring();
  }
}

std::optional<LostPeer> Watch::lost() {
  if (!has_news_) return std::nullopt;
  const std::lock_guard lock(mutex_);
  return lost_;
}

}  // namespace caravan::messages
