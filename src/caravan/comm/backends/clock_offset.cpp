#include "caravan/comm/backends/clock_offset.h"

#include <algorithm>
#include <array>
#include <limits>
#include <vector>

#include "caravan/comm/calls/agree.h"

namespace caravan {
namespace {

constexpr int kRounds = 16;

/// Compares the clocks of rank 0 and `leader`. Returns on `leader`: the time on rank 0's clock when that of `leader` is
/// 0, and its error.
std::array<int64_t, 2> compare_clocks(Communicator& comm, int leader, const std::function<int64_t()>& now_ns) {
  std::array<int64_t, 2> best{0, std::numeric_limits<int64_t>::max()};
  int64_t theirs = 0;
  const Buffer message{&theirs, 1, Dtype::int64};
  for (int round = 0; round < kRounds; ++round) {
    if (comm.rank() == 0) {
      comm.recv(message, leader, "clock");
      theirs = now_ns();
      comm.send(message, leader, "clock");
      continue;
    }
    const int64_t begin = now_ns();
    comm.send(message, 0, "clock");
    comm.recv(message, 0, "clock");
    const int64_t end = now_ns();
    const int64_t error = (end - begin + 1) / 2;
    if (error < best[1]) best = {theirs - (begin + (end - begin) / 2), error};
  }
  return best;
}

}  // namespace

ClockOffset clock_offset(Communicator& comm, const std::string& host, const std::function<int64_t()>& now_ns) {
  int64_t begin = now_ns();
  const Buffer message{&begin, 1, Dtype::int64};
  comm.broadcast(message, 0, "clock");
  const std::vector<std::string> hosts = gather_texts(comm, host, "hosts");
  const auto leader_of = [&](const std::string& name) {
    return static_cast<size_t>(std::ranges::find(hosts, name) - hosts.begin());
  };
  std::array<int64_t, 2> own{0, 0};
  for (size_t rank = 1; rank < hosts.size(); ++rank) {
    const bool is_leader = leader_of(hosts[rank]) == rank;
    const bool is_here = comm.rank() == 0 || static_cast<size_t>(comm.rank()) == rank;
    if (is_leader && is_here) own = compare_clocks(comm, static_cast<int>(rank), now_ns);
  }
  if (comm.rank() == 0) own = {0, 0};
  std::vector<int64_t> all(2 * hosts.size());
  comm.all_gather({own.data(), 2, Dtype::int64}, {all.data(), static_cast<int64_t>(all.size()), Dtype::int64}, {},
                  "clocks");
  const size_t leader = leader_of(host);
  return {.zero_ns = begin - all[2 * leader], .error_ns = all[2 * leader + 1]};
}

}  // namespace caravan
