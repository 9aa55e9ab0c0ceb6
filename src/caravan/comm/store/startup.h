#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "caravan/comm/options.h"
#include "caravan/comm/store/rendezvous.h"

namespace caravan {

/// How long a rank waits for the others when a world is created: the communicator's time-out, but at least 5 s, because
/// processes do not start at the same moment.
std::chrono::milliseconds startup_timeout(const CommOptions& options);

/// The keys of the next world of `backend` that this rank creates. The n-th one of this rank is the n-th of every rank.
std::shared_ptr<Store> next_world_store(std::string_view backend, const RankInfo& info,
                                        const std::shared_ptr<Store>& store);

/// Returns when every rank has called it with the store of the same world. Throws CommError naming the ranks that do
/// not within `timeout`.
void wait_for_ranks(std::string_view backend, const RankInfo& info, Store& store, std::chrono::milliseconds timeout);

/// "ranks 1, 3 of 4 did not join within 5 s". If some of `missing` have disconnected, names only those: "rank 3 of 4
/// ended before the ranks met".
std::string missing_ranks_text(std::vector<int64_t> missing, int world_size, Store& store,
                               std::chrono::milliseconds timeout);

}  // namespace caravan
