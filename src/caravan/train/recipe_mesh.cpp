#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "caravan/base/divisors.h"
#include "caravan/base/error.h"
#include "caravan/base/text.h"
#include "caravan/train/recipe.h"

namespace caravan {
namespace {

/// The multiple of `step` nearest to `value`, at least `step`.
int64_t nearest_multiple(int64_t value, int64_t step) { return std::max<int64_t>(1, (value + step / 2) / step) * step; }

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
         .action = fmt::format("use --ranks {}, leave mesh.dp out, or change it", recipe.mesh.dp * others)});
  }
  if (num_ranks % others != 0) {
    const std::string key = recipe.tensor_parallel.is_used()    ? "mesh.tp"
                            : recipe.context_parallel.is_used() ? "mesh.cp"
                            : recipe.expert_parallel.is_used()  ? "mesh.ep"
                                                                : "mesh.pp";
    throw UsageError({.op = "recipe",
                      .subject = "mesh",
                      .fact = fmt::format("{} ranks are started, not a multiple of {} ({})", num_ranks, others,
                                          mesh_text(recipe, "any")),
                      .where = recipe.where(key),
                      .action = fmt::format("use --ranks {}, or pp, ep, cp and tp whose product divides {}",
                                            nearest_multiple(num_ranks, others), num_ranks)});
  }
  return num_ranks / others;
}

/// What stages that step on their own do not have: a gradient of the whole model, or of two stages.
void check_asynchronous(const Recipe& recipe) {
  const std::string name = recipe.pipeline.schedule;
  const auto refuse_if = [&](bool is_wrong, const char* key, const std::string& fact, const std::string& action) {
    if (is_wrong) recipe.refuse(key, fact, action);
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
  const TensorParallelChoice& tensor = recipe.tensor_parallel;
  const ContextParallelChoice& context = recipe.context_parallel;
  const ExpertParallelChoice& experts = recipe.expert_parallel;
  if (const std::string wrong = experts.wrong_with(recipe.model, tensor); !wrong.empty()) {
    recipe.refuse(experts.is_used() ? "mesh.ep" : "mesh.tp", wrong, "change it, or moe.experts");
  }
  const bool has_stages = recipe.pipeline.is_used();
  if (recipe.memory.recompute.kind == RecomputeChoice::Kind::stage && !has_stages) {
    recipe.refuse("memory.recompute", "\"stage\" is used with mesh.pp above 1 only", "use \"full\"");
  }
  if (!tensor.is_used() && !context.is_used() && !experts.is_used() && !has_stages) return;
  if (const std::string wrong = tensor.wrong_with(recipe.model); tensor.is_used() && !wrong.empty()) {
    recipe.refuse("mesh.tp", wrong, "change mesh.tp, or the model");
  }
  if (const std::string wrong = context.wrong_with(recipe.model, tensor.head_parts());
      context.is_used() && !wrong.empty()) {
    const bool is_exchange = context.has_both() && wrong.starts_with("context_parallel.exchange");
    recipe.refuse(is_exchange ? "context_parallel.exchange" : "mesh.cp", wrong, "change it, or mesh.cp");
  }
  const int64_t stream_parts = context.degree * (tensor.sequence && tensor.is_used() ? tensor.degree : 1);
  const int64_t pieces = std::lcm(context.pieces(), stream_parts);
  if (recipe.model.context % pieces != 0) {
    recipe.refuse("model.context",
                  fmt::format("{} positions do not split into {} equal pieces", recipe.model.context, pieces),
                  fmt::format("use model.context = {}", nearest_multiple(recipe.model.context, pieces)));
  }
  if (recipe.pipeline.has_windows()) check_asynchronous(recipe);
  const DataParallelChoice& data = recipe.data_parallel;
  if (data.is_replicated() || data.is_asynchronous()) {
    recipe.refuse(data.is_replicated() ? "data_parallel.technique" : "data_parallel.mode",
                  "runs whole models, and the mesh splits them", "use " + data_parallel_techniques().front());
  }
}

/// What data parallelism over `dp` ranks cannot be.
void check_data_parallel(const Recipe& recipe, int dp) {
  const DataParallelChoice& choice = recipe.data_parallel;
  const auto refuse_if = [&](const std::string& wrong, const char* key, const std::string& action) {
    if (!wrong.empty()) recipe.refuse(key, wrong, action);
  };
  refuse_if(choice.wrong_with_shard(dp), "data_parallel.shard", choice.instead_of_shard(dp));
  if (const std::string wrong = wrong_with_precision(choice, recipe.precision); !wrong.empty()) {
    throw UsageError({.op = "recipe",
                      .subject = "precision",
                      .fact = wrong,
                      .where = recipe.where("data_parallel.mode"),
                      .action = "use data_parallel.mode = \"sync\", or compute in bf16 and leave the rest at fp32"});
  }
  refuse_if(wrong_with_hook(choice, recipe.precision), "data_parallel.hook", "use \"none\"");
  const bool counts_batch = recipe.model.moe.balances_batch();
  refuse_if(choice.is_asynchronous() && counts_batch ? "balances experts over a batch, and no step has one" : "",
            "moe.balance", "use \"sequence\", or data_parallel.mode = \"sync\"");
  refuse_if(choice.wrong_with_servers(dp), "data_parallel.servers", fmt::format("use {}, or \"all\"", dp));
  refuse_if(choice.wrong_with_backend(recipe.comm.backend), "comm.backend",
            "use comm.backend = \"thread\", or data_parallel.technique = \"" + data_parallel_techniques().front() +
                "\" over processes");
}

/// The key to change for what PipelineChoice::wrong_with says.
const char* key_of(const std::string& wrong) {
  const auto names = [&](const char* part) { return wrong.find(part) != std::string::npos; };
  if (names("pipeline.cut")) return "pipeline.cut";
  return names("use pipeline.stages_per_rank") || names("pipeline.schedule") ? "pipeline.schedule" : "mesh.pp";
}

/// Micro-batches of a step, from `rows` sequences of a data-parallel rank; each a multiple of `parts`.
int64_t pipeline_micro_batches(const Recipe& recipe, int64_t rows, int64_t parts) {
  const PipelineChoice& pipeline = recipe.pipeline;
  const int64_t micro_batch = recipe.train.micro_batch;
  if (const std::string wrong = pipeline.wrong_with(recipe.model, 0); !wrong.empty()) {
    recipe.refuse(key_of(wrong), wrong, "change the section [pipeline], mesh.pp or the model");
  }
  std::vector<int64_t> possible;
  for (int64_t count = 1; count <= rows; ++count) {
    const bool is_whole = rows % count == 0 && rows / count % parts == 0;
    if (is_whole && pipeline.wrong_with(recipe.model, count).empty()) possible.push_back(count);
  }
  const std::string choices = possible.empty() ? "change train.global_batch"
                                               : fmt::format("use pipeline.micro_batches from {{{}}}", join(possible));
  const auto check = [&](const char* key, int64_t count) {
    if (rows % count != 0 && pipeline.is_file()) {  // which says how many there are
      recipe.refuse("train.global_batch",
                    fmt::format("{} sequences of a data-parallel rank do not split into {} micro-batches", rows, count),
                    fmt::format("use train.global_batch = {}",
                                nearest_multiple(recipe.train.global_batch, count * recipe.train.global_batch / rows)));
    }
    if (rows % count != 0) {
      recipe.refuse(key,
                    fmt::format("{} sequences of a data-parallel rank do not split into {} micro-batches", rows, count),
                    choices);
    }
    if (const std::string wrong = pipeline.wrong_with(recipe.model, count); !wrong.empty()) {
      recipe.refuse(key, wrong, choices);
    }
    return count;
  };
  if (pipeline.micro_batches > 0) {
    if (micro_batch > 0 && micro_batch * pipeline.micro_batches != rows) {
      recipe.refuse("pipeline.micro_batches",
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

std::vector<AxisSize> mesh_axes(const Recipe& recipe, int num_ranks) {
  const auto dp = static_cast<int>(dp_of(recipe, num_ranks));
  check_split(recipe);
  check_data_parallel(recipe, dp);
  std::vector<AxisSize> axes{{"dp", dp}};
  if (recipe.pipeline.is_used()) axes.insert(axes.begin(), {"pp", static_cast<int>(recipe.pipeline.degree)});
  if (recipe.expert_parallel.is_used()) axes.push_back({"ep", static_cast<int>(recipe.expert_parallel.degree)});
  if (recipe.context_parallel.is_used()) axes.push_back({"cp", static_cast<int>(recipe.context_parallel.degree)});
  if (recipe.tensor_parallel.is_used()) axes.push_back({"tp", static_cast<int>(recipe.tensor_parallel.degree)});
  return axes;
}

BatchPlan plan_batch(const Recipe& recipe, int num_ranks) {
  const int64_t batch = recipe.train.global_batch;
  BatchPlan plan;
  const std::vector<AxisSize> axes = mesh_axes(recipe, num_ranks);
  plan.dp = std::ranges::find(axes, "dp", &AxisSize::name)->size;
  if (batch % plan.dp != 0) {
    throw UsageError(
        {.op = "recipe",
         .subject = "train.global_batch",
         .fact = fmt::format("global_batch {} = dp {} x micro_batch x accumulation has no solution: {} / {} is "
                             "not whole",
                             batch, plan.dp, batch, plan.dp),
         .where = fmt::format("{}; {} ranks", recipe.where("train.global_batch"), num_ranks),
         .action = fmt::format("use global_batch = {}, or dp from {{{}}}", nearest_multiple(batch, plan.dp),
                               join(divisors(batch, 1, 64)))});
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
         .action = fmt::format("use micro_batch from {{{}}}", join(divisors(rows, 1, 64)))});
  }
  plan.accumulation = rows / plan.micro_batch;
  return plan;
}

}  // namespace caravan
