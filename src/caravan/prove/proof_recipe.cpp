#include "caravan/prove/proof_recipe.h"

#include <algorithm>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/nn/loss/loss_chunks.h"
#include "caravan/nn/product/product_choice.h"
#include "caravan/registry/registry.h"
#include "caravan/schedule/pipeline_schedule.h"
#include "caravan/techniques/demands.h"
#include "caravan/techniques/offload/kinds.h"

namespace caravan {
namespace {

constexpr int64_t kUsualTokens = 32;      ///< of a micro-batch of a rank
constexpr int64_t kTokensOfExperts = 64;  ///< in fp32 some experts get fewer than kFewRows, some more
constexpr int64_t kChunkedTokens = 272;   ///< more than one chunk of the loss, with kChunkedVocabulary
constexpr int64_t kChunkedVocabulary = 1031;
constexpr int64_t kBucketBytes = 4096;  ///< several buckets, as in any useful model
constexpr int64_t kOwnTokens = 1280;    ///< of a micro-batch at own sizes: more than one chunk for any vocabulary

int64_t ranks_of(const Recipe& recipe) {
  if (const int set = recipe_ranks(recipe); set > 0) return set;
  return recipe.data_parallel.entry().least_ranks(recipe.data_parallel);
}

bool is_of_a_block(const std::string& pattern) { return pattern.starts_with("blocks."); }

bool names_modules(const Recipe& recipe) {
  return recipe.memory.recompute.reads("modules") ||
         (recipe.data_parallel.reads("units") && !recipe.data_parallel.texts("units").empty()) ||
         std::ranges::any_of(recipe.model.lora.targets, is_of_a_block) ||
         (recipe.tiling.reads("modules") && std::ranges::any_of(recipe.tiling.texts("modules"), is_of_a_block));
}

/// Tokens of a micro-batch of a rank.
int64_t tokens_of_rank(const Recipe& recipe, int64_t micro_batch) {
  return micro_batch / row_parts(recipe) * recipe.data.task.sequences() *
         (recipe.model.row_length() / recipe.context_parallel.degree);
}

/// The vocabulary is known once there is a tokenizer, which a proof does not need.
int64_t own_vocabulary(const Recipe& recipe) {
  if (recipe.model.vocabulary > 0) return recipe.model.vocabulary;
  if (recipe.data.tokenizer == "bytes") return 257;
  return recipe.data.trained_vocabulary;
}

void shrink(Split& split, const ModelConfig& model) {
  if (split.is_used()) split.degree = split.kind.entry().shrink(split.kind, split.degree, model);
}

/// Where layers would read what the host writes, updates are not delayed.
void fit_delay(Recipe& recipe) {
  const bool is_16_bit = recipe.precision.compute != "fp32";
  if (misfit_of_offload(recipe.data_parallel, recipe.offload, is_16_bit)) recipe.offload.set("delayed_update", false);
}

/// The device of a proof is large: "auto" moves everything, so that its paths are proved. Its few steps are delayed.
void fit_offload(Recipe& recipe) {
  for (const char* kind : kOffloadKinds) {
    if (recipe.offload.text(kind) == "auto") recipe.offload.set(kind, std::string("host"));
  }
  fit_delay(recipe);
  recipe.offload.set("delay_after", int64_t{0});
  // Fewer ranks have larger parts.
  if (!recipe.chunks.reads("size") || recipe.chunks.text("size") == "none") return;
  for (const char* key : {"size", "device"}) recipe.chunks.set(key, std::string("auto"));
}

/// The mesh of the proof. mesh.dp is set.
void fit_mesh(Recipe& recipe) {
  const int64_t ranks = ranks_of(recipe);
  recipe.mesh.dp = ranks / ranks_per_replica(recipe);
  if (ranks <= kMostProvedRanks) return;
  for (Split* split : {&recipe.tensor_parallel, &recipe.context_parallel, &recipe.expert_parallel}) {
    shrink(*split, recipe.model);
  }
  if (recipe.pipeline.is_used() && !recipe.pipeline.is_file())
    recipe.pipeline.degree = few_ranks(recipe.pipeline.degree);
  recipe.mesh.dp = recipe.data_parallel.entry().shrink(recipe.data_parallel, recipe.mesh.dp, recipe.model);
}

/// At most 2 stages on each rank, and micro-batches that every schedule has a table for. Returns the stages.
int64_t fit_pipeline(Recipe& recipe) {
  PipelineChoice& pipeline = recipe.pipeline;
  if (!pipeline.is_used()) return 1;
  if (!pipeline.is_file()) {
    pipeline.schedule.set("stages_per_rank", std::min<int64_t>(pipeline.chunks(), 2));
    pipeline.schedule.set("micro_batches", 2 * pipeline.degree);
  }
  if (!pipeline.layers().empty() || pipeline.measures()) pipeline.schedule.set("cut", pipeline_cuts().front());
  return static_cast<int64_t>(ranks_of_stages(pipeline).size());
}

constexpr int64_t kLeastContext = 5;    ///< documents have up to 5 tokens, and up to 4 of a row have no target
constexpr int64_t kMostContext = 1024;  ///< of a proof

/// The context of a step at the sizes of `original` on the ranks of `recipe`, each with as many tokens.
int64_t own_context(const Recipe& recipe, const Recipe& original) {
  return original.model.context / original.context_parallel.degree * recipe.context_parallel.degree;
}

/// Products of bf16 take terms in pairs where their number is even: parts of the hidden width are odd if `own` has odd
/// ones.
void fit_hidden(ModelConfig& model, const ModelConfig& own, const Split& tensor) {
  const int64_t widths = tensor.parts().widths;
  if (widths > 1) model.hidden = 32;
  const int64_t of_1d = model.moe.is_used() ? 1 : tensor.degree;  // which does not cut experts
  const int64_t cuts = widths > 1 ? widths : of_1d, hidden = own.hidden_width();
  if (hidden / cuts % 2 != 0 || (hidden + cuts - 1) / cuts % 2 != 0) model.hidden = 17 * cuts;
}

/// The recipe's grid divides the rank of adapters; a smaller grid may not.
void fit_adapters(ModelConfig& model, const Split& tensor) {
  const int64_t widths = tensor.parts().widths;
  if (widths > 1 && model.lora.rank % widths != 0) model.lora.rank *= widths;
}

/// In proportion to `own_context`, that of the own step, so that a ring has blocks that a window cuts and blocks that
/// it does not, if the recipe's has. A window that cuts nothing there cuts nothing here.
void fit_window(ModelConfig& model, int64_t own_window, int64_t own_context) {
  if (own_window == 0) return;
  const int64_t least = std::min<int64_t>(own_window, 3), most = std::max(least, model.context - 1);
  model.window = own_window < own_context ? std::clamp(own_window * model.context / own_context, least, most)
                                          : std::max(own_window, kMostContext);
}

/// Sizes of the smallest model that the degrees divide. Heads of keys and values are to the ranks as those of
/// `original` are to the ranks of its recipe. `is_few`: sequences as short as may be.
void fit_model(Recipe& recipe, const Recipe& original, bool is_few) {
  ModelConfig& model = recipe.model;
  const Split& tensor = recipe.tensor_parallel;
  const int64_t heads = tensor.parts().heads * recipe.context_parallel.parts().heads;
  const bool is_grouped = model.kv_heads > 0;
  if (model.heads % heads != 0) {
    model.heads = 2 * heads;
    model.kv_heads = is_grouped ? heads : 0;
    model.width = 4 * model.heads;
  }
  const bool shares_heads = original.model.num_kv_heads() % original.tensor_parallel.parts().heads != 0;
  if (shares_heads) model.kv_heads = original.model.num_kv_heads() > 1 && tensor.degree == 4 ? 2 : 1;
  // Heads of keys that an exchange does not divide are gathered.
  const int64_t exchanged = recipe.context_parallel.parts().heads, tensor_ranks = tensor.parts().heads;
  if (!shares_heads && original.model.num_kv_heads() / tensor_ranks % exchanged != 0) model.kv_heads = tensor_ranks;
  fit_hidden(model, original.model, tensor);
  fit_adapters(model, tensor);
  if (model.moe.is_used()) {  // as few as the degrees and a token's choice allow, at least 4
    const int64_t parts = recipe.expert_parallel.degree * tensor.degree;
    const int64_t least = std::min<int64_t>(model.moe.experts, std::max<int64_t>(model.moe.top_k, 4));
    model.moe.experts = (least + parts - 1) / parts * parts;
    // Rounding to 16 bits sends a token whose scores are nearly alike to other experts, and a few such tokens differ by
    // as much as a fault. Here all experts take each token; the proof in fp32 chooses.
    if (recipe.precision.compute != "fp32") {
      model.moe.top_k = model.moe.experts;
      if (model.moe.capacity > 0) model.moe.capacity = std::max(model.moe.capacity, 1.0);
    }
  }
  const int64_t pieces = tensor.degree * recipe.context_parallel.parts().pieces;
  if (is_few) {
    model.context = (kLeastContext + pieces - 1) / pieces * pieces;
  } else if (model.context % pieces != 0) {
    model.context = 2 * pieces;
  }
  fit_window(model, original.model.window, own_context(recipe, original));
}

/// Tokens of a micro-batch of a rank: enough for the kernels that the recipe's own sizes use.
int64_t fit_tokens(Recipe& recipe, const Recipe& original, int64_t own_micro_batch) {
  const int64_t own_tokens = tokens_of_rank(original, own_micro_batch);
  if (own_tokens < kFewRows) return own_tokens;
  // Of unlike micro-batches the largest may be computed in chunks; with kChunkedTokens the smallest is not.
  const int64_t most_tokens = original.train.is_even() ? own_tokens : 2 * own_tokens;
  if (tokens_per_chunk(most_tokens, own_vocabulary(original)) >= most_tokens) {
    return recipe.model.moe.is_used() ? kTokensOfExperts : kUsualTokens;
  }
  recipe.model.vocabulary = kChunkedVocabulary;
  return kChunkedTokens;
}

/// Sequences of a micro-batch with about this number of tokens on each rank: at least as many from kFewRows on, else at
/// most.
int64_t sequences_of(const Recipe& recipe, int64_t tokens) {
  const int64_t of_sequence = recipe.data.task.sequences() * recipe.model.row_length() / recipe.context_parallel.degree;
  const int64_t sequences = tokens < kFewRows ? tokens / of_sequence : (tokens + of_sequence - 1) / of_sequence;
  return row_parts(recipe) * std::max<int64_t>(sequences, 1);
}

/// Micro-batches of a step: those of the recipe, `most` at most; in a pipeline those that fit_pipeline sets, or that
/// its own table has.
int64_t fit_accumulation(const Recipe& recipe, const BatchPlan& own, int64_t most) {
  if (!recipe.pipeline.is_used()) return std::min(own.accumulation, most);
  return recipe.pipeline.is_file() ? own.accumulation : recipe.pipeline.micro_batches();
}

/// Sets the number of sequences and of micro-batches. Of one sequence there is no uneven deal.
void set_batch(Recipe& recipe, int64_t micro_batch, int64_t accumulation) {
  if (!recipe.train.is_even()) micro_batch = std::max(micro_batch, 2 * row_parts(recipe));
  recipe.train.micro_batch = micro_batch;
  if (recipe.pipeline.is_used()) recipe.pipeline.schedule.set("micro_batches", accumulation);
  recipe.train.global_batch = micro_batch * accumulation * recipe.mesh.dp;
  plan_batch(recipe, static_cast<int>(recipe.mesh.dp * ranks_per_replica(recipe)));
}

/// Halves the heads, and narrows the model accordingly. Returns false if the degrees do not divide them any more.
bool halve_heads(Recipe& recipe) {
  ModelConfig model = recipe.model;
  if (model.heads % 2 != 0 || model.kv_heads % 2 != 0) return false;
  model.hidden = model.hidden_width() / 2;
  model.width /= 2;
  model.heads /= 2;
  model.kv_heads /= 2;
  const Split& tensor = recipe.tensor_parallel;
  const bool fits = !tensor.misfit(model) && !recipe.context_parallel.misfit(model, tensor.parts());
  if (fits) recipe.model = model;
  return fits;
}

/// Halves the context, which must still have enough tokens for what depends on their number. Returns false if that is
/// not possible.
bool halve_context(Recipe& recipe) {
  ModelConfig& model = recipe.model;
  const bool fits = model.context % (2 * recipe.tensor_parallel.degree * recipe.context_parallel.parts().pieces) == 0 &&
                    tokens_of_rank(recipe, recipe.train.micro_batch) >= 2 * kOwnTokens;
  if (!fits) return false;
  model.context /= 2;
  if (model.has_encoder()) model.source_context = std::max<int64_t>(model.source_context / 2, 1);
  return true;
}

/// A proof has random numbers in place of a reference model.
Recipe without_reference(Recipe recipe) {
  recipe.data.task.preference.reference.clear();
  if (recipe.data.task.has_preferences()) recipe.train.init_from.clear();
  return recipe;
}

void check_provable(const Recipe& recipe) {
  if (!recipe.pipeline.has_windows()) return;
  recipe.refuse("pipeline.schedule",
                recipe.pipeline.name() + " computes with the weights of earlier steps, which one process does not do",
                fmt::format("prove the recipe with {}; the page of the schedule in docs/ says what is computed",
                            first_of("pipeline").name));
}

}  // namespace

Recipe load_recipe_to_prove(const std::filesystem::path& file, const std::vector<std::string>& overrides,
                            std::string& note) {
  const auto load = [&](const std::vector<std::string>& more) {
    std::vector<std::string> all = overrides;
    all.insert(all.end(), more.begin(), more.end());
    return load_recipe(file, all);
  };
  try {
    return load({});
  } catch (const DataError& error) {
    const std::string why = error.what();
    const std::vector<std::string> without_model{"train.init_from="};
    const std::vector<std::string> without_adapter{"lora.adapter=", "lora.rank=4"};
    std::vector<std::string> without_both = without_model;
    without_both.insert(without_both.end(), without_adapter.begin(), without_adapter.end());
    for (const auto& without : {without_model, without_adapter, without_both}) {
      try {
        Recipe recipe = load(without);
        note = "the weights that it starts from are missing, so the recipe's own sizes are used: " + why;
        return recipe;
      } catch (const Error&) {  // the first error is the best description
      }
    }
    throw;
  }
}

namespace {

/// One of the two layers is of each kind that the model has; windows are shorter than the context if the model's are,
/// and texts longer than the context before the scaling of positions.
void shrink_patterns(ModelConfig& small, const ModelConfig& model) {
  const auto shrink = [&](LayerSet& set) {
    if (!set.empty()) set = LayerSet::every(2);
  };
  shrink(small.full_layers);
  shrink(small.unrotated_layers);
  shrink(small.moe.dense_layers);
  if (small.moe.dense_hidden > 0) small.moe.dense_hidden = 24;
  fit_window(small, model.window, model.context);
  if (model.own_head_width > 0) small.own_head_width = model.rope_fraction < 1 ? 8 : 6;
  if (model.rope_fraction < 1) small.rope_fraction = 0.5;
  if (model.score_width > 0) small.score_width = 5;
  RopeScaling& scaling = small.rope_scaling;
  if (scaling.original_context > 0) scaling.original_context = 4;
  const auto pairs = static_cast<size_t>(small.rotated_width() / 2);
  for (auto* factors : {&scaling.short_factors, &scaling.long_factors}) {
    if (!factors->empty()) factors->resize(pairs, factors->back());
  }
}

}  // namespace

ModelConfig shrunken(const ModelConfig& model) {
  const bool is_grouped = model.num_kv_heads() < model.heads;
  ModelConfig small = model;
  small.layers = 2;
  small.width = 16;
  small.heads = 4;
  small.kv_heads = is_grouped ? 2 : 0;
  small.hidden = 0;
  small.context = std::clamp<int64_t>(model.context, kLeastContext, 8);  // few tokens take other kernels
  small.vocabulary = 23;                                                 // prime: no degree divides it
  if (small.moe.has_shared()) small.moe.shared_hidden = 24;
  shrink_patterns(small, model);
  if (model.has_encoder()) {
    small.encoder_layers = 1;
    small.source_context = 6;
  }
  if (model.arch.positions == Positions::buckets) {
    small.buckets = 6;
    small.bucket_distance = 5;  // some distances are beyond
  }
  small.classes = std::min<int64_t>(model.classes, 5);
  small.token_types = std::min<int64_t>(model.token_types, 3);
  if (small.lora.is_used()) {  // a small factor other than 1: a large one amplifies roundings
    small.lora.rank = model.lora.rank % 2 == 0 ? 4 : 3;
    small.lora.alpha = 2;
  }
  return small;
}

Recipe proof_recipe(const Recipe& recipe, int64_t tokens) {
  check_provable(recipe);
  const BatchPlan own = plan_batch(recipe, static_cast<int>(ranks_of(recipe)));
  Recipe small = without_reference(recipe);
  fit_offload(small);
  fit_mesh(small);
  small.model = shrunken(recipe.model);
  if (names_modules(recipe)) small.model.layers = recipe.model.layers;  // "blocks.7" must exist
  small.model.layers = std::max(small.model.layers, fit_pipeline(small));
  if (recipe.model.has_encoder()) {  // in proportion
    small.model.encoder_layers = std::clamp<int64_t>(
        recipe.model.encoder_layers * small.model.layers / recipe.model.layers, 1, small.model.layers - 1);
  }
  fit_model(small, recipe, /*is_few=*/tokens > 0 && tokens < kFewRows);
  if (small.data_parallel.reads("bucket_bytes")) {
    small.data_parallel.set("bucket_bytes", std::min(small.data_parallel.whole("bucket_bytes"), kBucketBytes));
  }
  const int64_t fitting = fit_tokens(small, recipe, own.micro_batch);
  set_batch(small, sequences_of(small, tokens > 0 ? tokens : fitting), fit_accumulation(small, own, 3));
  return small;
}

Recipe own_step_recipe(const Recipe& recipe, const std::function<bool(const Recipe&)>& fits) {
  check_provable(recipe);
  const BatchPlan own = plan_batch(recipe, static_cast<int>(ranks_of(recipe)));
  Recipe step = without_reference(recipe);
  fit_offload(step);
  fit_mesh(step);
  fit_adapters(step.model, step.tensor_parallel);
  step.model.vocabulary = own_vocabulary(recipe);
  step.model.context = own_context(step, recipe);
  const int64_t stages = fit_pipeline(step);
  if (!names_modules(recipe)) step.model = first_layers(step.model, std::max<int64_t>(2, stages));
  const int64_t unit = row_parts(step);
  const int64_t of_unit = std::max<int64_t>(tokens_of_rank(step, unit), 1);
  const int64_t enough = std::max<int64_t>((kOwnTokens + of_unit - 1) / of_unit, 1) * unit;
  const int64_t own_micro_batch = own.micro_batch / row_parts(recipe) * unit;
  set_batch(step, std::min(own_micro_batch, enough), fit_accumulation(step, own, 2));
  constexpr int64_t kSmallVocabulary = 4096;
  if (!fits(step)) step.model.vocabulary = std::min(step.model.vocabulary, kSmallVocabulary);
  while (!fits(step) && halve_context(step)) continue;
  while (!fits(step) && halve_heads(step)) continue;
  return step;
}

Recipe in_fp32(Recipe recipe) {
  recipe.precision.compute = "fp32";
  fit_delay(recipe);
  return recipe;
}

std::vector<Recipe> variants_of_batch(const Recipe& recipe) {
  std::vector<Recipe> all{recipe};
  if (recipe.train.micro_batch != kAutoMicroBatch || recipe.pipeline.is_used()) return all;
  const int64_t least = row_parts(recipe);
  if (plan_batch(recipe, static_cast<int>(ranks_of(recipe))).micro_batch == least) return all;
  all.push_back(recipe);
  all.back().train.micro_batch = least;
  return all;
}

std::set<int> group_sizes(const Recipe& recipe) {
  const auto ranks = static_cast<int>(ranks_of(recipe));
  std::set<int> sizes{ranks};
  for (const AxisSize& axis : mesh_axes(recipe, ranks)) {
    sizes.insert(axis.size);
    if (axis.name != "dp") continue;
    for (const AxisSize& factor : recipe.data_parallel.entry().factors(recipe.data_parallel, axis.size)) {
      sizes.insert(factor.size);
    }
  }
  sizes.erase(1);
  return sizes;
}

void take_vocabulary(Recipe& recipe, const DataFolders& folders, std::string& note) {
  const std::string& tokenizer = recipe.data.tokenizer;
  if (recipe.model.vocabulary > 0 || tokenizer.empty() || tokenizer == "bytes") return;
  try {
    recipe.model.vocabulary = Tokenizer::load(find_file(tokenizer, folders)).vocab_size();
  } catch (const DataError&) {
    note += fmt::format("{}{} is missing: its vocabulary is assumed to be {}", note.empty() ? "" : "; ", tokenizer,
                        own_vocabulary(recipe));
  }
}

std::vector<std::string> left_out_of_proof(const Recipe& recipe) {
  std::vector<std::string> names;
  const PrecisionChoice& precision = recipe.precision;
  if (precision.gradients != "fp32") names.push_back("gradients in " + precision.gradients);
  if (precision.reduced_in() != precision.gradients) names.push_back("reductions in " + precision.reduced_in());
  if (!recipe.hook.is_none()) names.push_back("hook " + recipe.hook.name());
  return names;
}

}  // namespace caravan
