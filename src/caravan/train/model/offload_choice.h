#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "caravan/comm/communicator.h"
#include "caravan/recipe/recipe.h"
#include "caravan/train/model/micro_batch.h"

namespace caravan {

/// The most that the device of a rank may hold (offload.device_budget); 0: no limit.
int64_t device_budget(const Recipe& recipe);

/// `recipe` with the least offload that `fits`: first to the host, then, if it has folders, to disk; of the kinds that
/// are "auto" the optimizer, then gradients, parameters and activations, which move more and more bytes. Nothing if
/// none fits. Evaluates at most 9 choices.
std::optional<Recipe> least_offload(const Recipe& recipe, const std::function<bool(const Recipe&)>& fits);

/// Each "auto" of the section offload replaced by the least that `fits`; if nothing fits, by the host for all. Throws
/// UsageError without a device_budget.
Recipe with_chosen_offload(const Recipe& recipe, const std::function<bool(const Recipe&)>& fits);

/// The same for a run: what fits device_budget on every rank, by rehearsals. Every rank of `world` calls it.
void resolve_offload(Recipe& recipe, int64_t vocabulary, Communicator& world);

/// With offload.device_budget, chunks.device = "auto" becomes what the plan leaves of it, and the plan that of a run
/// with this room. Every rank of `world` calls it.
void resolve_chunks(Recipe& recipe, MemoryPlan& plan, int64_t vocabulary, Communicator& world);

/// The room for chunks that leaves a rank within `limit_bytes`: that of its least-room plan and what the limit has
/// beside its peak, in whole chunks, maybe more than there are; nothing if "auto" is not for this to choose. Ranks take
/// the least.
std::optional<int64_t> chunk_room(const Recipe& recipe, int64_t peak_bytes, const ChunkReport& chunks,
                                  int64_t limit_bytes);

/// Throws ResourceError on every rank if some rank needs more than its device_budget: names the event, and the least
/// offload that fits. Every rank of `world` calls it.
void check_budget(const Recipe& recipe, const MemoryPlan& plan, int64_t vocabulary, Communicator& world);

/// "optimizer on host: 1.2 GiB of host memory a rank; a step moves 300 MiB to the host, 600 MiB back": what a rank
/// offloads; "" for nothing.
std::string offload_text(const Recipe& recipe, const RankPeak& own);

/// Lines about chunks: their size and number, their room, what a step loads under each policy.
std::vector<std::string> chunk_lines(const ChunkReport& chunks);

}  // namespace caravan
