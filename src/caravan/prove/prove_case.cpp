#include <algorithm>

#include "caravan/base/text.h"
#include "caravan/parallel/pipeline_schedule.h"
#include "caravan/plan/stages.h"
#include "caravan/prove/prove.h"
#include "caravan/train/choice.h"

namespace caravan {

ModelConfig shrunken(const ModelConfig& model) {
  const bool is_grouped = model.num_kv_heads() < model.heads;
  ModelConfig small = model;
  small.layers = 2;
  small.width = 16;
  small.heads = 4;
  small.kv_heads = is_grouped ? 2 : 0;
  small.hidden = 0;
  small.context = 8;
  small.vocabulary = 23;  // divides by nothing
  small.dropout = 0.1;
  if (small.moe.has_shared()) small.moe.shared_hidden = 24;
  if (small.lora.is_used()) {  // a small factor other than 1: a large one amplifies roundings
    small.lora.rank = 4;
    small.lora.alpha = 2;
  }
  return small;
}

namespace {

int64_t shrink(int64_t degree) { return degree > 3 ? 2 : degree; }

void shrink_context(ContextParallelChoice& choice) {
  if (choice.has_both()) {
    choice.exchange = 2;
    choice.degree = 4;
  } else {
    choice.degree = shrink(choice.degree);
  }
}

/// The smallest grid of its kind; in one dimension, 4 ranks where they share heads of keys and values unequally.
void shrink_tensor(TensorParallelChoice& choice, const ModelConfig& model) {
  const bool shares_heads = model.num_kv_heads() % choice.degree != 0;
  if (choice.is_1d()) {
    choice.degree = shares_heads && choice.degree > 3 ? 4 : shrink(choice.degree);
  } else {
    choice.depth = 2;
    choice.degree = choice.kind == "2d" ? 4 : 8;
  }
}

/// As few experts as the degrees and a token's choice allow, at least 4.
void fit_experts(ModelConfig& model, const StrategyChoice& choice) {
  MoeConfig& moe = model.moe;
  if (!moe.is_used()) return;
  const int64_t parts = choice.expert_parallel.degree * choice.tensor_parallel.degree;
  const int64_t least = std::min<int64_t>(moe.experts, std::max<int64_t>(moe.top_k, 4));
  moe.experts = (least + parts - 1) / parts * parts;
}

/// What the degrees divide: sizes of a model as small as it can be. Heads of keys and values go into the ranks as those
/// of `original` do into the ranks of its recipe.
void fit(ModelConfig& model, const StrategyChoice& choice, const ModelConfig& original, int64_t original_degree) {
  const int64_t tensor = choice.tensor_parallel.head_parts();
  const int64_t heads = tensor * choice.context_parallel.num_ulysses();
  const bool is_grouped = model.kv_heads > 0;
  if (model.heads % heads != 0) {
    model.heads = 2 * heads;
    model.kv_heads = is_grouped ? heads : 0;
    model.width = 4 * model.heads;
  }
  const bool shares_heads = choice.tensor_parallel.is_1d() && original.num_kv_heads() % original_degree != 0;
  if (shares_heads) model.kv_heads = original.num_kv_heads() > 1 && tensor == 4 ? 2 : 1;
  if (!choice.tensor_parallel.is_1d()) model.hidden = 32;  // 3d divides it by the square of its side
  fit_experts(model, choice);
  const int64_t pieces = choice.tensor_parallel.degree * choice.context_parallel.pieces();
  if (model.context % pieces != 0) model.context = 2 * pieces;
}

/// At most 3 ranks and 2 stages on each, unless a table of its own says how many; a layer for each stage at least; and
/// micro-batches that the schedule has a table for.
void shrink_pipeline(StrategyChoice& choice, ProveCase& what) {
  PipelineChoice& pipeline = choice.pipeline;
  if (!pipeline.is_file()) {
    pipeline.degree = shrink(pipeline.degree);
    pipeline.stages_per_rank = std::min<int64_t>(pipeline.chunks(), 2);
    what.num_micro_batches = static_cast<int>(2 * pipeline.degree);
  } else {
    what.num_micro_batches = static_cast<int>(pipeline.micro_batches);
  }
  pipeline.layers.clear();
  std::ranges::find(what.axes, "pp", &AxisSize::name)->size = static_cast<int>(pipeline.degree);
  what.model.layers = std::max(what.model.layers, static_cast<int64_t>(ranks_of_stages(pipeline).size()));
  choice.stage_of_block = stage_of_units(pipeline, what.model, unit_flops(what.model));
  what.name = pipeline.schedule + " with " + what.name;
}

/// One process has no gradients that are rounded or compressed on their way: their layout is proved, in fp32. Returns
/// what is left out.
std::vector<std::string> leave_out_roundings(StrategyChoice& choice, const Recipe& recipe) {
  std::vector<std::string> names;
  const PrecisionChoice& precision = recipe.precision;
  if (precision.compute == "fp16") names.emplace_back("fp16");
  if (precision.gradients != "fp32") names.push_back("gradients in " + precision.gradients);
  if (precision.reduced_in() != precision.gradients) names.push_back("reductions in " + precision.reduced_in());
  if (recipe.data_parallel.hook != "none") names.push_back("hook " + recipe.data_parallel.hook);
  if (choice.compute_dtype == at::kHalf) choice.compute_dtype = at::kFloat;
  choice.gradient_dtype = at::kFloat;
  choice.reduce_dtype = std::nullopt;
  choice.data_parallel.hook = "none";
  return names;
}

}  // namespace

ProveCase prove_case(const Recipe& recipe) {
  if (recipe.pipeline.has_windows()) {
    recipe.refuse("pipeline.schedule",
                  recipe.pipeline.schedule + " computes with the weights of earlier steps, as no one process does",
                  "prove the recipe with 1f1b; docs/pipedream.md says what is computed");
  }
  const int usual = recipe.data_parallel.has_groups() ? static_cast<int>(2 * recipe.data_parallel.shard) : 2;
  const int num_ranks = recipe_ranks(recipe) > 0 ? recipe_ranks(recipe) : std::max(usual, 2);
  StrategyChoice choice = strategy_choice(recipe, recipe.model, num_ranks);
  const std::vector<std::string> left_out = leave_out_roundings(choice, recipe);
  choice.data_parallel.bucket_bytes = std::min<int64_t>(choice.data_parallel.bucket_bytes, 4096);  // several buckets
  ProveCase what{
      .name = choice.data_parallel.technique,
      .model = shrunken(recipe.model),
      .axes = mesh_axes(recipe, num_ranks),
      .num_micro_batches = static_cast<int>(std::min<int64_t>(plan_batch(recipe, num_ranks).accumulation, 3)),
      .dtype = at::kFloat,
      .compute_dtype = choice.compute_dtype,
      .seed = static_cast<uint64_t>(recipe.train.seed)};
  // Without a barrier no step is that of one process; what each rank holds and sums is checked.
  if (choice.data_parallel.is_asynchronous()) what.name += " run synchronously";
  if (!left_out.empty()) what.name += " without " + join(left_out);
  if (choice.recompute.kind != RecomputeChoice::Kind::none)
    what.name += " with recompute " + choice.recompute.to_string();
  const bool names_modules =
      choice.recompute.kind == RecomputeChoice::Kind::modules || !choice.data_parallel.units.empty() ||
      std::ranges::any_of(what.model.lora.targets, [](const auto& target) { return target.starts_with("blocks."); });
  if (names_modules) what.model.layers = recipe.model.layers;  // "blocks.7" is there
  if (choice.pipeline.is_used()) shrink_pipeline(choice, what);
  for (AxisSize& axis : what.axes) {
    if (axis.name == "pp") continue;
    if (axis.name == "tp") shrink_tensor(choice.tensor_parallel, recipe.model);
    if (axis.name == "cp") shrink_context(choice.context_parallel);
    if (axis.name == "ep") choice.expert_parallel.degree = shrink(choice.expert_parallel.degree);
    int64_t& shard = choice.data_parallel.shard;
    if (shard == 0 || axis.name != "dp") {
      axis.size = static_cast<int>(axis.name == "cp"   ? choice.context_parallel.degree
                                   : axis.name == "ep" ? choice.expert_parallel.degree
                                   : axis.name == "tp" ? choice.tensor_parallel.degree
                                                       : shrink(axis.size));
      continue;
    }
    const int64_t replicas = shrink(axis.size / shard);
    shard = shrink(shard);
    axis.size = static_cast<int>(replicas * shard);
  }
  what.has_documents = recipe.data.packs_documents();
  fit(what.model, choice, recipe.model, recipe.tensor_parallel.degree);
  const int64_t row_parts = choice.tensor_parallel.row_parts() * choice.expert_parallel.row_parts();
  choice.sequences = 2 * row_parts;
  const int dp = std::ranges::find(what.axes, "dp", &AxisSize::name)->size;
  if (row_parts > 1 || choice.pipeline.is_used()) what.rows = choice.sequences * what.num_micro_batches * dp;
  choice.data_parallel.servers = std::min<int64_t>(choice.data_parallel.servers, dp);
  what.arrange = [choice](Model& model, Mesh& mesh) { return Arrangement(make_strategy(choice, model, mesh)); };
  return what;
}

}  // namespace caravan
