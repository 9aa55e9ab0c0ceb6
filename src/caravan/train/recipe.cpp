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
  return recipe.pipeline.degree * recipe.expert_parallel.degree * recipe.context_parallel.degree *
         recipe.tensor_parallel.degree;
}

std::string split_text(const Recipe& recipe, int64_t dp) {
  const TensorParallelChoice& tensor = recipe.tensor_parallel;
  const ContextParallelChoice& context = recipe.context_parallel;
  const ExpertParallelChoice& experts = recipe.expert_parallel;
  const PipelineChoice& pipeline = recipe.pipeline;
  if (!tensor.is_used() && !context.is_used() && !experts.is_used() && !pipeline.is_used()) return "";
  std::string text = fmt::format("dp {}", dp);
  if (pipeline.is_used())
    text = fmt::format("pp {} ({}) x ", pipeline.degree, pipeline.is_file() ? "a table" : pipeline.schedule) + text;
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
  if (recipe.pipeline.is_used()) text = fmt::format("pp {} x ", recipe.pipeline.degree) + text;
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
                                            : recipe.expert_parallel.is_used()  ? "mesh.ep"
                                                                                : "mesh.pp"),
                      .action = fmt::format("use --ranks {}", nearest_multiple(num_ranks, others))});
  }
  return num_ranks / others;
}

/// What stages that step on their own do not have: a gradient of the whole model, or of two stages.
void check_asynchronous(const Recipe& recipe) {
  const std::string name = recipe.pipeline.schedule;
  const auto refuse_if = [&](bool is_wrong, const char* key, const std::string& fact, const std::string& action) {
    if (!is_wrong) return;
    throw UsageError({.op = "recipe", .subject = key, .fact = fact, .where = recipe.where(key), .action = action});
  };
  refuse_if(recipe.optimizer.clip_norm > 0, "optimizer.clip_norm",
            "the stages of " + name + " step on their own, and none knows the norm of the whole gradient",
            "use optimizer.clip_norm = 0");
  refuse_if(recipe.model.tie_embeddings, "model.tie_embeddings",
            "the first and the last stage of " + name + " update at different times, and would share a weight",
            "use model.tie_embeddings = false");
  for (const auto& [is_used, key] :
       {std::pair(recipe.tensor_parallel.is_used(), "mesh.tp"), std::pair(recipe.context_parallel.is_used(), "mesh.cp"),
        std::pair(recipe.expert_parallel.is_used(), "mesh.ep")}) {
    refuse_if(is_used, key, name + " runs whole layers on each rank", std::string("use ") + key + " = 1, or 1f1b");
  }
  refuse_if(recipe.data_parallel.is_sharded(), "data_parallel.technique",
            name + " keeps versions of whole weights on each rank",
            "use data_parallel.technique = \"" + data_parallel_techniques().front() + "\"");
  refuse_if(recipe.data_parallel.hook != "none", "data_parallel.hook",
            name + " reduces once for each micro-batch, and a hook counts steps", "use \"none\"");
  refuse_if(recipe.precision.scales_loss() || recipe.precision.gradients != "fp32", "precision.compute",
            name + " skips no step and keeps gradients in fp32",
            "use fp32 or bf16, and precision.gradients = \"fp32\"");
  refuse_if(recipe.model.moe.balances_batch(), "moe.balance",
            "a pass that counts a batch before it is computed would use other weights", "use \"sequence\"");
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
  const bool has_stages = recipe.pipeline.is_used();
  if (!tensor.is_used() && !context.is_used() && !experts.is_used() && !has_stages) return;
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
  if (recipe.memory.recompute.kind == RecomputeChoice::Kind::stage && !has_stages) {
    refuse("memory.recompute", "\"stage\" is used with mesh.pp above 1 only", "use \"full\"");
  }
  if (has_stages && recipe.pipeline.is_asynchronous()) check_asynchronous(recipe);
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
  if (recipe.pipeline.is_used()) axes.insert(axes.begin(), {"pp", static_cast<int>(recipe.pipeline.degree)});
  if (recipe.expert_parallel.is_used()) axes.push_back({"ep", static_cast<int>(recipe.expert_parallel.degree)});
  if (recipe.context_parallel.is_used()) axes.push_back({"cp", static_cast<int>(recipe.context_parallel.degree)});
  if (recipe.tensor_parallel.is_used()) axes.push_back({"tp", static_cast<int>(recipe.tensor_parallel.degree)});
  return axes;
}

namespace {

[[noreturn]] void refuse_micro_batches(const Recipe& recipe, const char* key, const std::string& fact,
                                       const std::string& action) {
  throw UsageError({.op = "recipe", .subject = key, .fact = fact, .where = recipe.where(key), .action = action});
}

/// Micro-batches of a step, from `rows` sequences of a data-parallel rank; each a multiple of `parts`.
int64_t pipeline_micro_batches(const Recipe& recipe, int64_t rows, int64_t parts) {
  const PipelineChoice& pipeline = recipe.pipeline;
  const int64_t micro_batch = recipe.train.micro_batch;
  std::vector<int64_t> possible;
  for (int64_t count = 1; count <= rows; ++count) {
    const bool is_whole = rows % count == 0 && rows / count % parts == 0;
    if (is_whole && pipeline.wrong_with(recipe.model, count).empty()) possible.push_back(count);
  }
  if (const std::string wrong = pipeline.wrong_with(recipe.model, 0); !wrong.empty()) {
    refuse_micro_batches(recipe, "mesh.pp", wrong, "change the section [pipeline], mesh.pp or the model");
  }
  const std::string choices = fmt::format("use pipeline.micro_batches from {{{}}}", join(possible));
  const auto check = [&](const char* key, int64_t count) {
    if (rows % count != 0) {
      refuse_micro_batches(
          recipe, key,
          fmt::format("{} sequences of a data-parallel rank do not split into {} micro-batches", rows, count),
          possible.empty() ? "change train.global_batch" : choices);
    }
    if (const std::string wrong = pipeline.wrong_with(recipe.model, count); !wrong.empty()) {
      refuse_micro_batches(recipe, key, wrong, possible.empty() ? "change train.global_batch" : choices);
    }
    return count;
  };
  if (pipeline.micro_batches > 0) {
    if (micro_batch > 0 && micro_batch * pipeline.micro_batches != rows) {
      refuse_micro_batches(recipe, "pipeline.micro_batches",
                           fmt::format("{} micro-batches of train.micro_batch = {} sequences are not the {} of a "
                                       "data-parallel rank",
                                       pipeline.micro_batches, micro_batch, rows),
                           "leave train.micro_batch out");
    }
    return check("pipeline.micro_batches", pipeline.micro_batches);
  }
  if (micro_batch >= 0) {
    if (micro_batch > 0 && rows % micro_batch != 0) return 1;  // plan_batch names the divisors
    return check("train.micro_batch", micro_batch == 0 ? 1 : rows / micro_batch);
  }
  const int64_t wanted = pipeline.is_asynchronous() ? 1 : 2 * pipeline.degree;  // that flush: a bubble of a third
  const auto enough = std::ranges::find_if(possible, [&](int64_t count) { return count >= wanted; });
  if (enough != possible.end()) return *enough;
  return possible.empty() ? check("train.global_batch", rows) : possible.back();
}

}  // namespace

BatchPlan plan_batch(const Recipe& recipe, int num_ranks) {
  const int64_t batch = recipe.train.global_batch;
  BatchPlan plan;
  mesh_axes(recipe, num_ranks);
  plan.dp = dp_of(recipe, num_ranks);
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
  if (recipe.pipeline.is_used()) plan.micro_batch = rows / pipeline_micro_batches(recipe, rows, parts);
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
