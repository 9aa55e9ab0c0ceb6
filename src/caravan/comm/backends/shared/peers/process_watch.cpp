#include "caravan/comm/backends/shared/peers/process_watch.h"

#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <fmt/format.h>

#include "caravan/base/error.h"

namespace caravan::shared {
namespace {

/// The process id of a pidfd in this process's namespace, which may differ from the one that the peer itself sees.
/// Below 1 if the process is not visible here or has ended.
int number_seen_here(int descriptor) {
  std::ifstream file(fmt::format("/proc/self/fdinfo/{}", descriptor));
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("Pid:")) return std::atoi(line.c_str() + 4);
  }
  return 0;
}

/// The state letter of proc(5): T stopped by a signal, t by a debugger. 0 if there is no such process.
char state_of(int number) {
  std::ifstream file(fmt::format("/proc/{}/stat", number));
  std::string text;
  std::getline(file, text);
  const size_t name_ends = text.rfind(')');  // the name may contain spaces and parentheses
  return name_ends == std::string::npos || name_ends + 2 >= text.size() ? '\0' : text[name_ends + 2];
}

}  // namespace

PeerProcess own_process(int world_rank) {
  const pid_t number = getpid();
  Fd descriptor(static_cast<int>(syscall(SYS_pidfd_open, number, 0)));
  if (!descriptor) {
    throw ResourceError({.op = "shared memory",
                         .fact = fmt::format("cannot open a descriptor of process {}: {}", number, system_error(errno)),
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

std::vector<StoppedPeer> ProcessWatch::stopped() {
  std::vector<StoppedPeer> result;
  for (const PeerProcess& peer : peers_) {
    const int number = number_seen_here(peer.descriptor.get());
    const char state = number > 0 ? state_of(number) : '\0';
    if (state == 'T' || state == 't') result.push_back({peer.world_rank, number});
  }
  return result;
}

}  // namespace caravan::shared
