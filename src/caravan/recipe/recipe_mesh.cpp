#include <algorithm>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "caravan/base/divisors.h"
#include "caravan/base/error.h"
#include "caravan/base/text.h"
#include "caravan/recipe/recipe.h"
#include "caravan/registry/registry.h"
#include "caravan/techniques/demands.h"

namespace caravan {
namespace {

/// The multiple of `step` nearest to `value`, at least `step`.
int64_t nearest_multiple(int64_t value, int64_t step) { return std::max<int64_t>(1, (value + step / 2) / step) * step; }

/// The divisors of `rows` that `parts` divides.
std::vector<int64_t> multiples_that_divide(int64_t rows, int64_t parts) {
  std::vector<int64_t> found = divisors(rows, 1, 64);
  std::erase_if(found, [&](int64_t divisor) { return divisor % parts != 0; });
  return found;
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

/// The number of data-parallel ranks among `num_ranks`.
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

constexpr int64_t kLookedAt = 256;  ///< numbers of rows to try, for advice

/// The demands of the run on its techniques.
std::vector<Demand> demands_of(const Recipe& recipe) {
  std::vector<Demand> demands =
      demands_of(RunProperties{.tp = recipe.tensor_parallel.degree,
                               .cp = recipe.context_parallel.degree,
                               .ep = recipe.expert_parallel.degree,
                               .pp = recipe.pipeline.degree,
                               .computes_in_fp16 = recipe.precision.scales_loss(),
                               .keeps_16_bit_gradients = recipe.precision.gradients != "fp32",
                               .reduces_in_16_bits = recipe.precision.reduced_in() != "fp32"});
  const auto add = [&](bool is_asked, const Demand& demand) {
    if (is_asked) demands.push_back(demand);
  };
  add(recipe.optimizer.clip_norm > 0, {Trait::clips_norm, "optimizer.clip_norm", "needs the norm of the whole gradient",
                                       "use optimizer.clip_norm = 0"});
  add(recipe.optimizer.skip_spikes > 0,
      {Trait::scales_loss, "optimizer.skip_spikes", "needs one loss and norm of all ranks, and steps that are skipped",
       "use optimizer.skip_spikes = 0"});
  const Setting& optimizer = recipe.optimizer.kind;
  add(optimizer.reads("average") && optimizer.real("average") > 0,
      {Trait::scales_loss, "optimizer.average", "averages the weights of steps that all ranks take together",
       "use optimizer.average = 0"});
  add(recipe.log.tensors > 0,
      {Trait::whole_gradient, "log.tensors", "shows the gradients of one step of all ranks", "use log.tensors = 0"});
  add(recipe.model.ties_head(), {Trait::ties_weights, "model.tie_embeddings",
                                 "the first and the last layer share a weight", "use model.tie_embeddings = false"});
  add(recipe.pipeline.is_used() && recipe.model.arch.positions == Positions::buckets,
      {Trait::ties_weights, "model.positions", "layers of several stages share the weights of their buckets",
       "use mesh.pp = 1"});
  add(recipe.model.moe.balances_batch(),
      {Trait::whole_gradient, "moe.balance", "counts the whole batch before it is computed", "use \"sequence\""});
  add(!recipe.train.is_even(),
      {Trait::whole_gradient, "train.balance", "deals ranks unlike numbers of rows, whose gradients a step adds up",
       "use train.balance = \"even\""});
  add(recipe.data.streaming, {Trait::bounded_lead, "data.streaming",
                              "the text is tokenized for a known number of steps", "use data.streaming = false"});
  add(recipe.comm.backend != "thread",
      {Trait::runs_processes, "comm.backend",
       "the back-end is " + recipe.comm.backend + ", whose ranks are or may be processes",
       "use comm.backend = \"thread\""});
  for (Demand& demand : demands_of_optimizer(recipe.optimizer.kind)) demands.push_back(std::move(demand));
  return demands;
}

void refuse(const Recipe& recipe, const std::optional<Misfit>& misfit) {
  if (misfit) recipe.refuse(misfit->key, misfit->fact, misfit->action);
}

/// Refuses splits of the layers that are impossible.
void check_split(const Recipe& recipe) {
  const Split& tensor = recipe.tensor_parallel;
  const Split& context = recipe.context_parallel;
  const Split& experts = recipe.expert_parallel;
  refuse(recipe, experts.misfit(recipe.model, tensor.parts()));
  const bool has_stages = recipe.pipeline.is_used();
  const Setting& recompute = recipe.memory.recompute;
  refuse(recipe, recompute.entry().check(recompute, recipe.pipeline.degree));
  refuse(recipe, recipe.offload.entry().check(recipe.offload, 1));
  refuse(recipe, misfit_of_offload(recipe.data_parallel, recipe.offload, recipe.precision.compute != "fp32"));
  refuse(recipe, misfit_of_chunks(recipe.chunks, recipe.offload));
  if (!tensor.is_used() && !context.is_used() && !experts.is_used() && !has_stages) return;
  refuse(recipe, tensor.misfit(recipe.model));
  refuse(recipe, context.misfit(recipe.model, tensor.parts()));
  const SplitParts parts = tensor.parts() * context.parts();
  const int64_t pieces = std::lcm(parts.pieces, parts.stream);
  if (recipe.model.context % pieces != 0) {
    recipe.refuse("model.context",
                  fmt::format("{} positions do not split into {} equal pieces", recipe.model.context, pieces),
                  fmt::format("use model.context = {}", nearest_multiple(recipe.model.context, pieces)));
  }
}

/// Micro-batches of a step, from `rows` sequences of a data-parallel rank; each a multiple of `parts`.
int64_t pipeline_micro_batches(const Recipe& recipe, int64_t rows, int64_t parts) {
  const PipelineChoice& pipeline = recipe.pipeline;
  const int64_t micro_batch = recipe.train.micro_batch;
  refuse(recipe, pipeline.misfit(recipe.model, 0));
  const auto counts_of = [&](int64_t of_rows) {
    std::vector<int64_t> counts;
    for (int64_t count = 1; count <= of_rows; ++count) {
      const bool is_whole = of_rows % count == 0 && of_rows / count % parts == 0;
      if (is_whole && !pipeline.misfit(recipe.model, count)) counts.push_back(count);
    }
    return counts;
  };
  const std::vector<int64_t> possible = counts_of(rows);
  const auto more_rows = [&]() -> std::string {
    for (int64_t more = rows + 1; more < rows + kLookedAt; ++more) {
      if (counts_of(more).empty()) continue;
      return fmt::format("use train.global_batch = {}", recipe.train.global_batch / rows * more);
    }
    return "change train.global_batch";
  };
  const std::string choices =
      possible.empty() ? more_rows() : fmt::format("use pipeline.micro_batches from {{{}}}", join(possible));
  const auto check = [&](const char* key, int64_t count) {
    if (rows % count != 0 && pipeline.is_file()) {  // the file gives the number
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
    if (const auto misfit = pipeline.misfit(recipe.model, count)) {
      const bool says_more = possible.empty() || misfit->has_other_choice;
      recipe.refuse(key, misfit->fact, key == misfit->key && says_more ? misfit->action : choices);
    }
    return count;
  };
  if (pipeline.micro_batches() > 0) {
    if (micro_batch > 0 && micro_batch * pipeline.micro_batches() != rows) {
      recipe.refuse("pipeline.micro_batches",
                    fmt::format("{} micro-batches of train.micro_batch = {} sequences are not the {} of a "
                                "data-parallel rank",
                                pipeline.micro_batches(), micro_batch, rows),
                    "leave train.micro_batch out");
    }
    return check("pipeline.micro_batches", pipeline.micro_batches());
  }
  if (micro_batch >= 0) {
    return check("train.micro_batch", micro_batch == 0 ? 1 : rows / micro_batch);
  }
  const int64_t wanted = pipeline.is_asynchronous() ? 1 : 2 * pipeline.degree;  // with a flush: a bubble of a third
  const auto enough = std::ranges::find_if(possible, [&](int64_t count) { return count >= wanted; });
  if (enough != possible.end()) return *enough;
  return possible.empty() ? check("train.global_batch", rows) : possible.back();
}

}  // namespace

int64_t row_parts(const Recipe& recipe) {
  return recipe.tensor_parallel.parts().rows * recipe.expert_parallel.parts().rows;
}

RowsToDeal rows_to_deal(const Recipe& recipe, const BatchPlan& plan) {
  return {.rows = recipe.train.global_batch,
          .coordinates = plan.dp,
          .micro_batches = plan.accumulation,
          .unit = row_parts(recipe)};
}

std::vector<AxisSize> mesh_axes(const Recipe& recipe, int num_ranks) {
  const auto dp = static_cast<int>(dp_of(recipe, num_ranks));
  check_split(recipe);
  refuse(recipe, find_misfit(techniques_of(recipe), demands_of(recipe)));
  refuse(recipe, find_misfit({&recipe.tiling, 1}, demands_of_optimizer(recipe.optimizer.kind)));
  refuse(recipe, recipe.data_parallel.entry().check(recipe.data_parallel, dp));
  return used_axes(
      ordered_axes(dp, static_cast<int>(recipe.pipeline.degree), static_cast<int>(recipe.expert_parallel.degree),
                   static_cast<int>(recipe.context_parallel.degree), static_cast<int>(recipe.tensor_parallel.degree)));
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
  const int64_t parts = row_parts(recipe);
  if (recipe.pipeline.is_used() && rows % plan.micro_batch == 0) {
    plan.micro_batch = rows / pipeline_micro_batches(recipe, rows, parts);
  }
  if (const int64_t wrong = rows % parts != 0 ? rows : plan.micro_batch; wrong % parts != 0) {
    const bool is_rows = wrong == rows;
    const char* key = is_rows ? "train.global_batch" : "train.micro_batch";
    throw UsageError(
        {.op = "recipe",
         .subject = key,
         .fact = fmt::format("{} splits {} sequences of a micro-batch in {} parts",
                             recipe.expert_parallel.is_used()
                                 ? "mesh.ep"
                                 : "tensor_parallel.kind \"" + recipe.tensor_parallel.kind.name() + "\"",
                             wrong, parts),
         .where = recipe.where(key),
         .action = is_rows ? fmt::format("use {} = {}", key, nearest_multiple(batch, plan.dp * parts))
                           : fmt::format("use {} = {}", key, join(multiples_that_divide(rows, parts), " or "))});
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
