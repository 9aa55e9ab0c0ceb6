#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "caravan/comm/rendezvous.h"
#include "caravan/comm/store_socket.h"

namespace caravan::shared {

/// What a rank says of itself in the store before the ranks of one host meet.
struct Announcement {
  std::string boot;     ///< of this start of this kernel
  std::string network;  ///< the namespace in which local sockets have their names
  int64_t user = 0;
  std::string host;
  std::string socket;  ///< where rank 0 listens; empty elsewhere
  uint64_t token = 0;  ///< that rank 0 wants to hear

  static Announcement own(std::string socket, uint64_t token);
};

/// Shows `own` to all ranks and waits for theirs, in the order of the ranks. Throws CommError naming the ranks that do
/// not come within `timeout`, or have gone.
std::vector<Announcement> exchange(const Announcement& own, const RankInfo& info, Store& store,
                                   std::chrono::milliseconds timeout);

/// Throws UsageError unless all are on one host and of one user; the same error on every rank.
void check_one_host(const std::vector<Announcement>& all, const RankInfo& info);

/// "rank 3" or "ranks 3, 5" of `info.world_size` did not come within `timeout`, or those of them that have gone.
[[noreturn]] void throw_missing(std::vector<int64_t> missing, const RankInfo& info, Store& store,
                                std::chrono::milliseconds timeout);

}  // namespace caravan::shared
