#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "caravan/comm/store/rendezvous.h"

namespace caravan::shared {

/// What a rank writes about itself to the store before the ranks of one host connect.
struct Announcement {
  std::string boot;     ///< boot id of the kernel: equal for all processes of one host
  std::string network;  ///< network namespace: abstract sockets are visible only within one
  int64_t user = 0;
  std::string host;
  std::string socket;  ///< the socket that rank 0 listens on; empty on other ranks
  uint64_t token = 0;  ///< a peer must send it to rank 0 when it connects
  uint64_t reservable_bytes = 0;
  std::vector<int> cores;  ///< usable ones, see base/system/cores.h

  static Announcement own(std::string socket, uint64_t token);
};

/// Publishes `own` and returns the announcements of all ranks, in rank order. Throws CommError naming the ranks that do
/// not publish within `timeout` or have left.
std::vector<Announcement> exchange(const Announcement& own, const RankInfo& info, Store& store,
                                   std::chrono::milliseconds timeout);

/// The number of distinct cores that the ranks may run on.
int count_cores(const std::vector<Announcement>& all);

/// Throws UsageError unless all ranks run on one host and as one user; the same error on every rank.
void check_one_host(const std::vector<Announcement>& all, const RankInfo& info);

/// Throws CommError: the ranks `missing` did not join within `timeout`, or have left.
[[noreturn]] void throw_missing(std::vector<int64_t> missing, const RankInfo& info, Store& store,
                                std::chrono::milliseconds timeout);

}  // namespace caravan::shared
