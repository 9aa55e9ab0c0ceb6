#include "caravan/train/recipe.h"

#include <algorithm>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/text.h"

namespace caravan {
namespace {

/// The multiple of `step` nearest to `value`, at least `step`.
int64_t nearest_multiple(int64_t value, int64_t step) { return std::max<int64_t>(1, (value + step / 2) / step) * step; }

std::string divisors(int64_t number, int64_t limit) {
  std::vector<int64_t> all;
  for (int64_t d = 1; d <= std::min(number, limit); ++d) {
    if (number % d == 0) all.push_back(d);
  }
  return join(all);
}

}  // namespace

std::string Recipe::where(const std::string& key) const {
  const auto found = locations.find(key);
  return found == locations.end() ? "default of " + key : found->second;
}

std::vector<std::string> recipe_notes(const Recipe& recipe) {
  std::vector<std::string> notes;
  const int64_t steps = recipe.train.steps;
  const int64_t warmup = recipe.optimizer.rate.warmup_steps;
  if (steps > 0 && warmup >= steps) {
    notes.push_back(
        fmt::format("optimizer.warmup_steps is {}, and the run has {} steps: the learning rate does "
                    "not reach optimizer.lr",
                    warmup, steps));
  }
  if (recipe.memory.recompute.kind == RecomputeChoice::Kind::selective && recipe.model.dropout == 0) {
    notes.push_back(
        "memory.recompute = \"selective\" saves next to nothing without model.dropout: the fused attention keeps no "
        "weights");
  }
  return notes;
}

std::string BatchPlan::to_string() const {
  return fmt::format("global_batch {} = dp {} x micro_batch {} x accumulation {}", dp * rows(), dp, micro_batch,
                     accumulation);
}

int recipe_ranks(const Recipe& recipe) { return static_cast<int>(recipe.mesh.dp); }

std::vector<AxisSize> mesh_axes(const Recipe& recipe, int num_ranks) {
  if (recipe.mesh.dp > 0 && recipe.mesh.dp != num_ranks) {
    throw UsageError(
        {.op = "recipe",
         .subject = "mesh",
         .fact = fmt::format("dp {} = {} ranks, but {} are started", recipe.mesh.dp, recipe.mesh.dp, num_ranks),
         .where = recipe.where("mesh.dp"),
         .action = fmt::format("use --ranks {}, or leave mesh.dp out", recipe.mesh.dp)});
  }
  const DataParallelChoice& choice = recipe.data_parallel;
  const auto check = [&](const std::string& wrong, const char* subject, const char* key, const std::string& action) {
    if (wrong.empty()) return;
    throw UsageError({.op = "recipe", .subject = subject, .fact = wrong, .where = recipe.where(key), .action = action});
  };
  check(choice.wrong_with_shard(num_ranks), "data_parallel.shard", "data_parallel.shard",
        choice.instead_of_shard(num_ranks));
  check(wrong_with_precision(choice, recipe.precision), "precision", "data_parallel.mode",
        "use data_parallel.mode = \"sync\", or compute in bf16 and leave the rest at fp32");
  check(wrong_with_hook(choice, recipe.precision), "data_parallel.hook", "data_parallel.hook", "use \"none\"");
  check(choice.wrong_with_servers(num_ranks), "data_parallel.servers", "data_parallel.servers",
        fmt::format("use {}, or \"all\"", num_ranks));
  check(choice.wrong_with_backend(recipe.comm.backend), "comm.backend", "comm.backend",
        "use comm.backend = \"thread\", or data_parallel.technique = \"" + data_parallel_techniques().front() +
            "\" over processes");
  return {{"dp", num_ranks}};
}

BatchPlan plan_batch(const Recipe& recipe, int num_ranks) {
  const int64_t batch = recipe.train.global_batch;
  BatchPlan plan;
  plan.dp = mesh_axes(recipe, num_ranks).front().size;
  if (batch % plan.dp != 0) {
    throw UsageError(
        {.op = "recipe",
         .subject = "train.global_batch",
         .fact = fmt::format("global_batch {} = dp {} x micro_batch x accumulation has no solution: {} / {} is "
                             "not whole",
                             batch, plan.dp, batch, plan.dp),
         .where = fmt::format("{}; {} ranks", recipe.where("train.global_batch"), num_ranks),
         .action = fmt::format("use global_batch = {}, or dp from {{{}}}", nearest_multiple(batch, plan.dp),
                               divisors(batch, 64))});
  }
  const int64_t rows = batch / plan.dp;
  plan.micro_batch = recipe.train.micro_batch > 0 ? recipe.train.micro_batch : rows;
  if (rows % plan.micro_batch != 0) {
    throw UsageError(
        {.op = "recipe",
         .subject = "train.micro_batch",
         .fact = fmt::format("global_batch {} = dp {} x micro_batch {} x accumulation has no solution: {} / {} is "
                             "not whole",
                             batch, plan.dp, plan.micro_batch, rows, plan.micro_batch),
         .where = fmt::format("{}; {} ranks, {} sequences a rank", recipe.where("train.micro_batch"), num_ranks, rows),
         .action = fmt::format("use micro_batch from {{{}}}", divisors(rows, 64))});
  }
  plan.accumulation = rows / plan.micro_batch;
  return plan;
}

}  // namespace caravan
