#include "caravan/train/micro_batch.h"

#include <algorithm>
#include <array>
#include <limits>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/memory_limit.h"
#include "caravan/base/text.h"
#include "caravan/comm/agree.h"
#include "caravan/registry/registry.h"
#include "caravan/train/prepare.h"

namespace caravan {
namespace {

constexpr int64_t kUnknown = std::numeric_limits<int64_t>::max();
/// What a process takes besides tensors; its libraries are shared with the other ranks.
constexpr int64_t kProcessBytes = int64_t{160} << 20;

/// The rest is for what no estimate covers: the file cache, other programs, what the allocator keeps.
constexpr double kUsedShare = 0.8;

MemoryShape shape_of(const Recipe& recipe, int64_t vocabulary, int num_ranks, bool shares_memory) {
  const BatchPlan plan = plan_batch(recipe, num_ranks);
  MemoryShape shape{.model = recipe.model,
                    .sequences = plan.micro_batch,
                    .rows = plan.rows(),
                    .tensor_parallel = recipe.tensor_parallel,
                    .context_parallel = recipe.context_parallel,
                    .expert_parallel = recipe.expert_parallel,
                    .pipeline = recipe.pipeline,
                    .recomputes_stages = recipe.memory.recompute.kind == RecomputeChoice::Kind::stage,
                    .compute_bytes = PrecisionChoice::bytes(recipe.precision.compute),
                    .gradient_bytes = PrecisionChoice::bytes(recipe.precision.gradients),
                    .reduce_bytes = PrecisionChoice::bytes(recipe.precision.reduced_in()),
                    .num_moments = recipe.optimizer.kind.entry().num_moments(recipe.optimizer.kind),
                    .data_parallel = {recipe.data_parallel, recipe.hook},
                    .ranks = plan.dp,
                    .shares_memory = shares_memory,
                    .copies_checkpoint = recipe.checkpoint.async};
  if (shape.model.vocabulary == 0) shape.model.vocabulary = vocabulary;
  count_recomputed(shape, recipe.memory.recompute);
  return fullest_rank(shape);
}

/// "1.5 GiB" of a number that may exceed 63 bits.
std::string text_of(double bytes) {
  constexpr double kMost = 4e18;
  return (bytes > kMost ? "more than " : "") + format_bytes(static_cast<int64_t>(std::min(bytes, kMost)));
}

bool fits(MemoryShape shape, int64_t sequences, int64_t limit) {
  shape.sequences = sequences;
  return limit <= 0 || peak_bytes(shape) <= static_cast<double>(limit);
}

[[noreturn]] void refuse_memory(const Recipe& recipe, MemoryShape shape, int64_t limit) {
  shape.sequences = shape.row_parts();
  const double states = state_bytes(shape);
  throw ResourceError({"train", "memory",
                       fmt::format("a rank needs about {} with {} sequence{} at a time ({} of them for parameters, "
                                   "gradients and the optimizer), but has {}",
                                   text_of(peak_bytes(shape)), shape.sequences, shape.sequences > 1 ? "s" : "",
                                   text_of(states), format_bytes(limit)),
                       recipe.where("train.micro_batch"),
                       batch_bytes(shape) > static_cast<double>(limit) / 2 ? "lower train.global_batch"
                       : states > static_cast<double>(limit) / 2
                           ? "lower model.layers, model.width or the vocabulary, or start fewer ranks on "
                             "this host"
                       : recipe.pipeline.is_used()
                           ? "raise pipeline.micro_batches, or use memory.recompute"
                           : "lower model.context, model.layers or model.width, or start fewer ranks on "
                             "this host"});
}

}  // namespace

int64_t memory_share(int64_t host_bytes, int ranks_on_host) noexcept {
  if (host_bytes <= 0) return 0;
  const int64_t share = host_bytes / std::max(1, ranks_on_host);
  return std::max({share - kProcessBytes, share / 2, int64_t{1}});
}

std::string memory_note(const MemoryPlan& plan) {
  const auto limit = static_cast<double>(plan.limit_bytes);
  if (plan.limit_bytes <= 0 || plan.peak_bytes <= kUsedShare * limit) return "";
  if (plan.peak_bytes <= limit) return "close to the limit";
  return plan.shape.sequences > 1 ? "it may not fit; lower train.micro_batch, or set it to \"auto\""
                                  : "it may not fit; use a smaller model or context";
}

std::string memory_text(const MemoryPlan& plan) {
  const std::string of = plan.limit_bytes > 0 ? " of " + format_bytes(plan.limit_bytes) : "";
  const std::string note = memory_note(plan);
  return fmt::format("about {}{} per rank{}{}", text_of(plan.peak_bytes), of, note.empty() ? "" : ": ", note);
}

MemoryPlan plan_memory(const Recipe& recipe, int64_t vocabulary, int num_ranks, int64_t limit_bytes, int64_t before,
                       bool shares_memory) {
  MemoryPlan plan{.shape = shape_of(recipe, vocabulary, num_ranks, shares_memory),
                  .limit_bytes = limit_bytes,
                  .is_chosen = recipe.train.micro_batch == kAutoMicroBatch && !recipe.pipeline.is_used()};
  if (plan.is_chosen && before > 0 && plan.shape.rows % before == 0 && fits(plan.shape, before, limit_bytes)) {
    plan.shape.sequences = before;
  } else if (plan.is_chosen && limit_bytes > 0) {
    plan.shape.sequences = std::max(largest_micro_batch(plan.shape, kUsedShare * static_cast<double>(limit_bytes)),
                                    plan.shape.row_parts());
    if (!fits(plan.shape, plan.shape.sequences, limit_bytes)) refuse_memory(recipe, plan.shape, limit_bytes);
  }
  const bool states_fit = limit_bytes <= 0 || state_bytes(plan.shape) <= static_cast<double>(limit_bytes);
  if (!states_fit) refuse_memory(recipe, plan.shape, limit_bytes);
  plan.peak_bytes = peak_bytes(plan.shape);
  return plan;
}

MemoryPlan resolve_micro_batch(Recipe& recipe, int64_t vocabulary, Communicator& world, int64_t before) {
  const std::string host = host_name();
  const std::vector<std::string> hosts = gather_texts(world, host, "hosts");
  const int64_t mine =
      memory_share(usable_memory_bytes(), static_cast<int>(std::count(hosts.begin(), hosts.end(), host)));
  std::array<int64_t, 2> numbers{mine > 0 ? mine : kUnknown, -before};  // the least, and minus the largest
  const Buffer buffer{numbers.data(), static_cast<int64_t>(numbers.size()), Dtype::int64};
  world.all_reduce(buffer, buffer, ReduceOp::min, "memory of the ranks");
  const auto [least, minus_before] = numbers;
  MemoryPlan plan = plan_memory(recipe, vocabulary, world.size(), least == kUnknown ? 0 : least, -minus_before,
                                world.shares_memory());
  recipe.train.micro_batch = plan.shape.sequences;
  return plan;
}

}  // namespace caravan
