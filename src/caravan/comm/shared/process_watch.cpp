#include "caravan/comm/shared/process_watch.h"

#include <cerrno>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <fmt/format.h>

#include "caravan/base/error.h"

namespace caravan::shared {

PeerProcess own_process(int world_rank) {
  const pid_t number = getpid();
  store_socket::Fd descriptor(static_cast<int>(syscall(SYS_pidfd_open, number, 0)));
  if (!descriptor) {
    throw ResourceError(
        {.op = "shared memory",
         .fact = fmt::format("cannot open a descriptor of process {}: {}", number, store_socket::system_error(errno)),
         .action = "use the back-end gloo if this kernel (before Linux 5.3) or its sandbox has no "
                   "pidfd_open, or raise the limit of open files (ulimit -n)"});
  }
  return {world_rank, number, std::move(descriptor)};
}

std::vector<EndedPeer> ProcessWatch::ended() {
  std::vector<pollfd> entries;
  for (const PeerProcess& peer : peers_) entries.push_back({peer.descriptor.get(), POLLIN, 0});
  std::vector<EndedPeer> result;
  if (poll(entries.data(), entries.size(), 0) <= 0) return result;
  for (size_t i = 0; i < peers_.size(); ++i) {
    if (entries[i].revents == 0) continue;
    result.push_back({peers_[i].world_rank, fmt::format("its process {} has ended", peers_[i].number)});
  }
  return result;
}

}  // namespace caravan::shared
