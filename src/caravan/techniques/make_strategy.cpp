#include "caravan/techniques/make_strategy.h"

#include <vector>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/text.h"
#include "caravan/registry/registry.h"
#include "caravan/techniques/demands.h"
#include "caravan/techniques/pipeline/pipeline.h"
#include "caravan/techniques/split_model.h"
#include "caravan/techniques/technique_body.h"

namespace caravan {
namespace {

constexpr const char* kAxis = "dp";

at::ScalarType dtype_of(const std::string& name) {
  if (name == "fp32") return at::kFloat;
  if (name == "bf16") return at::kBFloat16;
  if (name == "fp16") return at::kHalf;
  throw UsageError({"strategy", "precision", "'" + name + "' is not a dtype to compute in", "",
                    "use '" + nearest(name, std::vector<std::string>{"fp32", "bf16", "fp16"}) + "'"});
}

[[noreturn]] void refuse(const Misfit& misfit, const Mesh& mesh) {
  throw UsageError({"strategy", misfit.key, misfit.fact, mesh.where(), misfit.action});
}

void check_composition(const StrategyChoice& choice, const Mesh& mesh) {
  const std::vector<Setting> techniques =
      techniques_of(choice.data_parallel, choice.hook, choice.recompute, choice.pipeline, choice.offload);
  const RunProperties run{.tp = choice.tensor_parallel.degree,
                          .cp = choice.context_parallel.degree,
                          .ep = choice.expert_parallel.degree,
                          .pp = choice.pipeline.degree,
                          .computes_in_fp16 = choice.compute_dtype == at::kHalf,
                          .keeps_16_bit_gradients = choice.gradient_dtype != at::kFloat,
                          .reduces_in_16_bits = choice.reduce_dtype && *choice.reduce_dtype != at::kFloat};
  if (const auto misfit = find_misfit(techniques, demands_of(run))) refuse(*misfit, mesh);
}

/// Adds the key of the recipe to errors of a technique that are about a key of its setting or (`is_whole`) about
/// anything.
template <class Function>
void in_words_of(const Setting& setting, bool is_whole, Function apply) {
  try {
    apply();
  } catch (const UsageError& error) {
    ErrorText text = error.text();
    if (is_whole) {
      text.fact = fmt::format("'{}' {}", text.subject, text.fact);
      text.subject = setting.full_name();
    } else if (setting.reads(text.subject)) {
      text.subject = setting.full_name(text.subject);
    } else {
      throw;
    }
    throw UsageError(text);
  }
}

/// Checks the setting against its axis, and factors the axis for the technique.
void lay_out_axis(const Setting& technique, Mesh& mesh) {
  const int64_t ranks = mesh[kAxis].size();
  const Entry& entry = technique.entry();
  if (const auto misfit = entry.check(technique, ranks)) refuse(*misfit, mesh);
  const std::vector<AxisSize> factors = entry.factors(technique, ranks);
  if (!factors.empty()) mesh = mesh.factor(kAxis, factors);
}

void keep_frozen(const StrategyChoice& choice, Strategy& strategy, const Mesh& mesh) {
  strategy.keeps_frozen = choice.keeps_frozen;
  if (!choice.keeps_frozen || strategy.parameters_tier == Tier::device) return;
  refuse({"lora.keep_frozen", "keeps gathered weights on the device, but parameters are offloaded",
          "leave it out, or use " + choice.offload.full_name("parameters") + " = \"none\""},
         mesh);
}

}  // namespace

void set_dtypes(StrategyChoice& choice, const PrecisionChoice& precision) {
  choice.compute_dtype = dtype_of(precision.compute);
  choice.gradient_dtype = dtype_of(precision.gradients);
  const std::string& reduce = precision.reduced_in();
  choice.reduce_dtype = reduce != precision.gradients ? std::optional(dtype_of(reduce)) : std::nullopt;
}

Strategy make_strategy(const StrategyChoice& choice, Module& model, Mesh& mesh) {
  check_composition(choice, mesh);
  lay_out_axis(choice.data_parallel, mesh);
  Strategy strategy = split_model(choice, model, mesh);
  const Entry& recompute = choice.recompute.entry();
  if (const auto misfit = recompute.check(choice.recompute, choice.pipeline.degree)) refuse(*misfit, mesh);
  if (choice.pipeline.is_used()) {
    add_pipeline(strategy, mesh,
                 {.choice = choice.pipeline,
                  .stage_of_block = choice.stage_of_block,
                  .recompute = recompute.repeats_stages,
                  .has_static_shapes = choice.has_equal_micro_batches});
  }
  in_words_of(choice.tiling, false, [&] { add_tiles(choice.tiling, strategy, model, mesh); });
  const StrategyDtypes dtypes{choice.compute_dtype, choice.gradient_dtype, choice.reduce_dtype};
  if (const auto misfit = misfit_of_chunks(choice.chunks, choice.offload)) refuse(*misfit, mesh);
  add_around(choice.chunks, strategy, model);
  in_words_of(choice.data_parallel, false, [&] {
    body_of(choice.data_parallel).apply({strategy, mesh, dtypes, make_hook(choice.hook)}, choice.data_parallel);
  });
  if (choice.data_parallel.reads("bucket_bytes")) strategy.bucket_bytes = choice.data_parallel.whole("bucket_bytes");
  if (const auto misfit = choice.offload.entry().check(choice.offload, 1)) refuse(*misfit, mesh);
  const bool is_16_bit = choice.compute_dtype != at::kFloat;
  if (const auto misfit = misfit_of_offload(choice.data_parallel, choice.offload, is_16_bit)) refuse(*misfit, mesh);
  strategy.steps_early = !choice.waits_for_norm;
  in_words_of(choice.offload, false, [&] { add_around(choice.offload, strategy, model); });
  if (!strategy.is_offloaded()) strategy.steps_early = false;
  keep_frozen(choice, strategy, mesh);
  in_words_of(choice.recompute, true, [&] { add_around(choice.recompute, strategy, model); });
  return strategy;
}

}  // namespace caravan
