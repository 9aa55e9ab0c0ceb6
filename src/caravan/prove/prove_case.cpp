#include <algorithm>

#include "caravan/base/system/file.h"
#include "caravan/base/text.h"
#include "caravan/optim/make_optimizer.h"
#include "caravan/prove/proof_recipe.h"
#include "caravan/prove/prove.h"
#include "caravan/prove/trace.h"
#include "caravan/train/balance/deal_record.h"
#include "caravan/train/choice.h"
#include "caravan/train/model/micro_batch.h"
#include "caravan/train/model/reference_model.h"
#include "caravan/train/model/rehearse.h"

namespace caravan {
namespace {

/// One process has no gradients that are rounded or compressed when sent: their layout is proved, in fp32.
void leave_out_roundings(StrategyChoice& choice) {
  choice.gradient_dtype = at::kFloat;
  choice.reduce_dtype = std::nullopt;
  choice.hook = Setting("hook");
}

std::string name_of(const Recipe& recipe, const StrategyChoice& choice) {
  std::string name = choice.data_parallel.name();
  for (const Split* split : {&choice.tensor_parallel, &choice.context_parallel}) {
    if (split->is_used() && !split->kind.is_first()) name += " with " + split->kind.name();
  }
  // Without a barrier no step equals that of one process; the proof checks what each rank holds and sums.
  if (!choice.data_parallel.has(Trait::whole_gradient)) name += " run synchronously";
  const std::vector<std::string> left_out = left_out_of_proof(recipe);
  if (!left_out.empty()) name += " without " + join(left_out);
  if (choice.tiling.reads("tiles") && choice.tiling.whole("tiles") > 1) {
    name += " in " + std::to_string(choice.tiling.whole("tiles")) + " tiles";
  }
  if (!choice.recompute.is_none()) name += " with recompute " + choice.recompute.name();
  if (choice.offload.flag("delayed_update")) name += " with delayed updates";
  return choice.pipeline.is_used() ? choice.pipeline.name() + " with " + name : name;
}

/// Speeds of the data-parallel ranks: the rows that a record gives them last; without one, the first is twice as fast.
std::vector<double> proved_speeds(const Recipe& recipe, int64_t dp) {
  std::filesystem::path record = recipe.train.balance;
  if (recipe.train.is_measured()) record = recipe.folder / kDealsFile;  // beside a run's own recipe
  std::vector<double> speeds(static_cast<size_t>(dp), 1);
  speeds.front() = 2;
  std::error_code error;
  if (recipe.train.is_measured() && !std::filesystem::exists(record, error)) return speeds;
  const std::vector<RecordedDeal> deals = parse_deals(MappedFile(record, "prove").text(), record.string());
  if (deals.empty()) return speeds;
  const std::vector<int64_t>& rows = deals.back().rows;  // of more ranks than are proved, or of fewer
  for (size_t i = 0; i < speeds.size(); ++i) speeds[i] = static_cast<double>(rows[i % rows.size()]);
  return speeds;
}

}  // namespace

ProveCase case_of_recipe(const Recipe& recipe) {
  const int num_ranks = recipe_ranks(recipe);
  StrategyChoice choice = strategy_choice(recipe, recipe.model, num_ranks);
  leave_out_roundings(choice);
  const auto layers = static_cast<double>(std::max<int64_t>(recipe.model.layers, 2));
  ProveCase what{.name = name_of(recipe, choice),
                 .model = recipe.model,
                 .axes = mesh_axes(recipe, num_ranks),
                 .num_micro_batches = static_cast<int>(plan_batch(recipe, num_ranks).accumulation),
                 .rows = recipe.train.global_batch,
                 .has_documents = recipe.data.packs_documents(),
                 .dtype = at::kFloat,
                 .compute_dtype = choice.compute_dtype,
                 .lr = 1.0 / layers,  // steps of 0.5 grow the rounding errors of deep models beyond the tolerance
                 .seed = static_cast<uint64_t>(recipe.train.seed)};
  if (recipe.data.task.has_preferences()) what.preference = preference_settings(recipe.data.task.preference);
  // In 16 bits one process repeats the roundings of equal micro-batches.
  const BatchPlan plan = plan_batch(recipe, num_ranks);
  if (!recipe.train.is_even() && plan.dp > 1 && !rounds_to_16_bits(what)) {
    what.deal = {deal_rows(rows_to_deal(recipe, plan), proved_speeds(recipe, plan.dp)), row_parts(recipe)};
  }
  what.delays = choice.offload.flag("delayed_update");
  if (!choice.waits_for_norm && choice.offload.text("gradients") != "none") {
    what.clip_norm = 0;  // groups may step before the norm is known
    what.lr *= 0.1;      // gradients are that much longer than clipped ones
  } else {
    choice.waits_for_norm = true;
  }
  what.arrange = [choice](Model& model, Mesh& mesh) { return Arrangement(make_strategy(choice, model, mesh)); };
  return what;
}

ProveCase case_of_optimizer(const Recipe& recipe) {
  ProveCase what = case_of_recipe(in_fp32(recipe));
  Setting kind = recipe.optimizer.kind;
  if (kind.reads("epsilon")) kind.set("epsilon", 1e-3);    // else gradients of nothing but rounding become updates
  if (kind.reads("epsilon1")) kind.set("epsilon1", 1e-6);  // of their squares
  what.optimizer = [kind](FlatState& state) { return make_optimizer(kind, state); };
  what.optimizer_name = kind.name();
  what.dtype = at::kDouble;
  return what;
}

Recipe own_step_recipe(const Recipe& recipe, int64_t memory_bytes) {
  return own_step_recipe(recipe, [&](const Recipe& step) {
    const auto ranks = static_cast<int>(step.mesh.dp * ranks_per_replica(step));
    const auto rehearse_some = [&] { return rehearse_telling_ranks(step, step.model.vocabulary, ranks); };
    return fullest_of(rehearse_some).peak.total() <= memory_bytes / ranks;
  });
}

ProveCase prove_case(const Recipe& recipe) { return case_of_recipe(proof_recipe(recipe)); }

}  // namespace caravan
