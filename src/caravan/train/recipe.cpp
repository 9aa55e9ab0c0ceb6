#include "caravan/train/recipe.h"

#include <algorithm>
#include <numeric>

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
  const int64_t tp = recipe.tensor_parallel.degree;
  const int64_t kv_heads = recipe.model.num_kv_heads();
  if (recipe.tensor_parallel.is_1d() && kv_heads % tp != 0) {
    notes.push_back(
        fmt::format("model.kv_heads is {} and mesh.tp {}: groups of {} ranks have the same heads of keys and values",
                    kv_heads, tp, tp / std::gcd(kv_heads, tp)));
  }
  const MoeConfig& moe = recipe.model.moe;
  if (moe.experts > 1 && moe.top_k == 1 && moe.normalize) {
    notes.push_back(
        "moe.normalize makes the gate of moe.top_k = 1 expert always 1: routers learn from their own losses alone");
  }
  if (recipe.context_parallel.num_ring() > 1 && recipe.model.dropout > 0) {
    notes.push_back(
        "model.dropout is above 0: attention over a ring gathers keys and values instead of passing them on");
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

int64_t ranks_per_replica(const Recipe& recipe) {
  return recipe.expert_parallel.degree * recipe.context_parallel.degree * recipe.tensor_parallel.degree;
}

std::string split_text(const Recipe& recipe, int64_t dp) {
  const TensorParallelChoice& tensor = recipe.tensor_parallel;
  const ContextParallelChoice& context = recipe.context_parallel;
  const ExpertParallelChoice& experts = recipe.expert_parallel;
  if (!tensor.is_used() && !context.is_used() && !experts.is_used()) return "";
  std::string text = fmt::format("dp {}", dp);
  if (experts.is_used()) text += fmt::format(" x ep {}", experts.degree);
  if (context.is_used()) text += fmt::format(" x cp {} ({})", context.degree, context.kind);
  if (tensor.is_used()) {
    text += fmt::format(" x tp {} ({}{})", tensor.degree, tensor.kind, tensor.sequence ? ", sequence" : "");
  }
  return text;
}

int recipe_ranks(const Recipe& recipe) {
  const int64_t others = ranks_per_replica(recipe);
  const int64_t dp = recipe.mesh.dp == 0 && others > 1 ? 1 : recipe.mesh.dp;
  return static_cast<int>(dp * others);
}

/// "dp 2 x cp 2 x tp 4"
std::string mesh_text(const Recipe& recipe, const std::string& dp) {
  std::string text = "dp " + dp;
  if (recipe.expert_parallel.is_used()) text += fmt::format(" x ep {}", recipe.expert_parallel.degree);
  if (recipe.context_parallel.is_used()) text += fmt::format(" x cp {}", recipe.context_parallel.degree);
  if (recipe.tensor_parallel.is_used()) text += fmt::format(" x tp {}", recipe.tensor_parallel.degree);
  return text;
}

/// Data-parallel ranks of `num_ranks`.
int64_t dp_of(const Recipe& recipe, int num_ranks) {
  const int64_t others = ranks_per_replica(recipe);
  if (recipe.mesh.dp > 0 && recipe.mesh.dp * others != num_ranks) {
    throw UsageError(
        {.op = "recipe",
         .subject = "mesh",
         .fact = fmt::format("{} = {} ranks, but {} are started", mesh_text(recipe, std::to_string(recipe.mesh.dp)),
                             recipe.mesh.dp * others, num_ranks),
         .where = recipe.where("mesh.dp"),
         .action = fmt::format("use --ranks {}, or leave mesh.dp out", recipe.mesh.dp * others)});
  }
  if (num_ranks % others != 0) {
    throw UsageError({.op = "recipe",
                      .subject = "mesh",
                      .fact = fmt::format("{} ranks are started, not a multiple of {} ({})", num_ranks, others,
                                          mesh_text(recipe, "any")),
                      .where = recipe.where(recipe.tensor_parallel.is_used()    ? "mesh.tp"
                                            : recipe.context_parallel.is_used() ? "mesh.cp"
                                                                                : "mesh.ep"),
                      .action = fmt::format("use --ranks {}", nearest_multiple(num_ranks, others))});
  }
  return num_ranks / others;
}

/// What no split of the layers can be.
void check_split(const Recipe& recipe) {
  const auto refuse = [&](const char* key, const std::string& fact, const std::string& action) {
    throw UsageError({.op = "recipe", .subject = key, .fact = fact, .where = recipe.where(key), .action = action});
  };
  const TensorParallelChoice& tensor = recipe.tensor_parallel;
  const ContextParallelChoice& context = recipe.context_parallel;
  const ExpertParallelChoice& experts = recipe.expert_parallel;
  if (const std::string wrong = experts.wrong_with(recipe.model, tensor); !wrong.empty()) {
    refuse(experts.is_used() ? "mesh.ep" : "mesh.tp", wrong, "change it, or moe.experts");
  }
  if (!tensor.is_used() && !context.is_used() && !experts.is_used()) return;
  if (const std::string wrong = tensor.wrong_with(recipe.model); tensor.is_used() && !wrong.empty()) {
    refuse("mesh.tp", wrong, "change mesh.tp, or the model");
  }
  if (const std::string wrong = context.wrong_with(recipe.model, tensor.head_parts());
      context.is_used() && !wrong.empty()) {
    const bool is_exchange = context.has_both() && wrong.starts_with("context_parallel.exchange");
    refuse(is_exchange ? "context_parallel.exchange" : "mesh.cp", wrong, "change it, or mesh.cp");
  }
  const int64_t stream_parts = context.degree * (tensor.sequence && tensor.is_used() ? tensor.degree : 1);
  const int64_t pieces = std::lcm(context.pieces(), stream_parts);
  if (recipe.model.context % pieces != 0) {
    refuse("model.context", fmt::format("{} positions do not split into {} equal pieces", recipe.model.context, pieces),
           fmt::format("use model.context = {}", nearest_multiple(recipe.model.context, pieces)));
  }
  const DataParallelChoice& data = recipe.data_parallel;
  if (data.is_replicated() || data.is_asynchronous()) {
    refuse(data.is_replicated() ? "data_parallel.technique" : "data_parallel.mode",
           "runs whole models, and the mesh splits them", "use " + data_parallel_techniques().front());
  }
}

std::vector<AxisSize> mesh_axes(const Recipe& recipe, int num_ranks) {
  const auto dp = static_cast<int>(dp_of(recipe, num_ranks));
  check_split(recipe);
  const DataParallelChoice& choice = recipe.data_parallel;
  const auto check = [&](const std::string& wrong, const char* subject, const char* key, const std::string& action) {
    if (wrong.empty()) return;
    throw UsageError({.op = "recipe", .subject = subject, .fact = wrong, .where = recipe.where(key), .action = action});
  };
  check(choice.wrong_with_shard(dp), "data_parallel.shard", "data_parallel.shard", choice.instead_of_shard(dp));
  check(wrong_with_precision(choice, recipe.precision), "precision", "data_parallel.mode",
        "use data_parallel.mode = \"sync\", or compute in bf16 and leave the rest at fp32");
  check(wrong_with_hook(choice, recipe.precision), "data_parallel.hook", "data_parallel.hook", "use \"none\"");
  const bool counts_batch = recipe.model.moe.balances_batch();
  check(choice.is_asynchronous() && counts_batch ? "balances experts over a batch, and no step has one" : "",
        "moe.balance", "moe.balance", "use \"sequence\", or data_parallel.mode = \"sync\"");
  check(choice.wrong_with_servers(dp), "data_parallel.servers", "data_parallel.servers",
        fmt::format("use {}, or \"all\"", dp));
  check(choice.wrong_with_backend(recipe.comm.backend), "comm.backend", "comm.backend",
        "use comm.backend = \"thread\", or data_parallel.technique = \"" + data_parallel_techniques().front() +
            "\" over processes");
  std::vector<AxisSize> axes{{"dp", dp}};
  if (recipe.expert_parallel.is_used()) axes.push_back({"ep", static_cast<int>(recipe.expert_parallel.degree)});
  if (recipe.context_parallel.is_used()) axes.push_back({"cp", static_cast<int>(recipe.context_parallel.degree)});
  if (recipe.tensor_parallel.is_used()) axes.push_back({"tp", static_cast<int>(recipe.tensor_parallel.degree)});
  return axes;
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
  const int64_t parts = recipe.tensor_parallel.row_parts() * recipe.expert_parallel.row_parts();
  if (const int64_t wrong = rows % parts != 0 ? rows : plan.micro_batch; wrong % parts != 0) {
    const bool is_rows = wrong == rows;
    const char* key = is_rows ? "train.global_batch" : "train.micro_batch";
    throw UsageError(
        {.op = "recipe",
         .subject = key,
         .fact = fmt::format("{} splits {} sequences of a micro-batch in {} parts",
                             recipe.expert_parallel.is_used()
                                 ? "mesh.ep"
                                 : "tensor_parallel.kind \"" + recipe.tensor_parallel.kind + "\"",
                             wrong, parts),
         .where = recipe.where(key),
         .action = fmt::format("use {} = {}", key,
                               nearest_multiple(is_rows ? batch : wrong, is_rows ? plan.dp * parts : parts))});
  }
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
