#include "caravan/comm/backends/messages/failure/connection_watch.h"

#include <exception>

#include "caravan/base/system/broken_pipe.h"
#include "caravan/comm/backends/messages/group.h"

namespace caravan::messages {
namespace {

bool watches(int watcher, int rank, int size) { return watcher != rank && (rank == 0 || (watcher + 1) % size == rank); }

}  // namespace

ConnectionWatch::ConnectionWatch(Transport& transport, int rank, int size, CompletionEvent& completions)
    : completions_(completions) {
  for (int peer = 0; peer < size; ++peer) {
    if (!watches(rank, peer, size)) continue;
    auto recv = std::make_unique<OpenRecv>();
    recv->transfer = transport.recv(&recv->notice, 1, peer, tag());
    recv->thread = std::thread([this, peer, opened = recv.get()] { wait(*opened, peer); });
    recvs_.push_back(std::move(recv));
  }
}

ConnectionWatch::OpenRecv::~OpenRecv() {
  if (!thread.joinable()) return;
  transfer->interrupt();
  thread.join();
}

std::vector<int> ConnectionWatch::watchers_of(int rank, int size) {
  std::vector<int> watchers;
  for (int peer = 0; peer < size; ++peer) {
    if (watches(peer, rank, size)) watchers.push_back(peer);
  }
  return watchers;
}

int ConnectionWatch::tag() noexcept { return Group().tag(Channel::watch); }

void ConnectionWatch::wait(OpenRecv& recv, int peer) {
  const NoBrokenPipeSignal no_signal;
  try {
    recv.transfer->wait();  // returns with the notice, or when this watch is destroyed
  } catch (const std::exception& exception) {
    {
      const std::lock_guard lock(mutex_);
      if (!lost_) lost_ = LostPeer{peer, exception.what()};
    }
    has_lost_peer_ = true;
    completions_.signal();
  }
}

std::optional<LostPeer> ConnectionWatch::lost() {
  if (!has_lost_peer_) return std::nullopt;
  const std::lock_guard lock(mutex_);
  return lost_;
}

}  // namespace caravan::messages
