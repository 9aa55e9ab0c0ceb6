#include "caravan/train/micro_batch.h"

#include <algorithm>
#include <limits>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/text.h"
#include "caravan/comm/agree.h"
#include "caravan/plan/host_memory.h"
#include "caravan/train/prepare.h"

namespace caravan {
namespace {

constexpr int64_t kUnknown = std::numeric_limits<int64_t>::max();
/// What a process takes besides tensors; its libraries are shared with the other ranks.
constexpr int64_t kProcessBytes = int64_t{64} << 20;

/// The rest is for what no estimate covers: the file cache, other programs, what the allocator keeps.
constexpr double kUsedShare = 0.8;

int64_t num_moments(const Recipe::Optimizer& optimizer) {
  if (optimizer.kind == "adamw") return 2;
  return optimizer.momentum > 0 ? 1 : 0;
}

MemoryShape shape_of(const Recipe& recipe, int64_t vocabulary, int num_ranks) {
  const BatchPlan plan = plan_batch(recipe, num_ranks);
  MemoryShape shape{.model = recipe.model,
                    .sequences = plan.micro_batch,
                    .rows = plan.rows(),
                    .compute_bytes = recipe.precision.compute == "bf16" ? 2 : 4,
                    .num_moments = num_moments(recipe.optimizer)};
  if (shape.model.vocabulary == 0) shape.model.vocabulary = vocabulary;
  return shape;
}

/// "1.5 GiB" of a number that may exceed 63 bits.
std::string text_of(double bytes) {
  constexpr double kMost = 4e18;
  return (bytes > kMost ? "more than " : "") + format_bytes(static_cast<int64_t>(std::min(bytes, kMost)));
}

[[noreturn]] void refuse(const Recipe& recipe, const MemoryShape& shape, int64_t limit) {
  const double states = state_bytes(shape);
  throw ResourceError({"train", "memory",
                       fmt::format("a rank needs about {} with 1 sequence at a time ({} of them for parameters, "
                                   "gradients and the optimizer), but has {}",
                                   text_of(peak_bytes(shape)), text_of(states), format_bytes(limit)),
                       recipe.where("train.micro_batch"),
                       states > static_cast<double>(limit) / 2
                           ? "lower model.layers, model.width or the vocabulary, or start fewer ranks on "
                             "this host"
                           : "lower model.context, model.layers or model.width, or start fewer ranks on "
                             "this host"});
}

}  // namespace

int64_t memory_share(int64_t host_bytes, int ranks_on_host) noexcept {
  if (host_bytes <= 0) return 0;
  const int64_t share = host_bytes / std::max(1, ranks_on_host);
  return std::max({share - kProcessBytes, share / 2, int64_t{1}});
}

MemoryPlan plan_memory(const Recipe& recipe, int64_t vocabulary, int num_ranks, int64_t limit_bytes) {
  MemoryPlan plan{.shape = shape_of(recipe, vocabulary, num_ranks),
                  .limit_bytes = limit_bytes,
                  .is_chosen = recipe.train.micro_batch == kAutoMicroBatch};
  if (plan.is_chosen && limit_bytes > 0) {
    plan.shape.sequences =
        std::max<int64_t>(largest_micro_batch(plan.shape, kUsedShare * static_cast<double>(limit_bytes)), 1);
    if (peak_bytes(plan.shape) > static_cast<double>(limit_bytes)) refuse(recipe, plan.shape, limit_bytes);
  }
  plan.peak_bytes = peak_bytes(plan.shape);
  return plan;
}

MemoryPlan resolve_micro_batch(Recipe& recipe, int64_t vocabulary, Communicator& world) {
  const std::string host = host_name();
  const std::vector<std::string> hosts = gather_texts(world, host, "hosts");
  const int64_t mine =
      memory_share(host_memory_bytes(), static_cast<int>(std::count(hosts.begin(), hosts.end(), host)));
  int64_t least = mine > 0 ? mine : kUnknown;
  const Buffer buffer{&least, 1, Dtype::int64};
  world.all_reduce(buffer, buffer, ReduceOp::min, "memory of the ranks");
  MemoryPlan plan = plan_memory(recipe, vocabulary, world.size(), least == kUnknown ? 0 : least);
  recipe.train.micro_batch = plan.shape.sequences;
  return plan;
}

}  // namespace caravan
