#include "caravan/train/run_checks.h"

#include <algorithm>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/formats/huggingface/architectures/architecture_row.h"
#include "caravan/registry/compose.h"

namespace caravan {

void check_threads(const Recipe& recipe, const Numerics& numerics) {
  if (numerics.threads_per_rank != 0) return;
  if (recipe.model.moe.is_used() && recipe.tensor_parallel.is_used()) {
    throw UsageError(
        {"train", "comm.threads_per_rank",
         "ranks that split layers choose the experts of the same tokens each for itself, and other numbers "
         "of threads may round scores to another choice",
         recipe.where("comm.threads_per_rank"), "give every rank the same number"});
  }
  const Demand same_bits{Trait::threads_may_differ, "comm.threads_per_rank", "differs between the ranks",
                         "set comm.threads_per_rank"};
  if (const auto misfit = find_misfit(techniques_of(recipe), {{same_bits}})) {
    recipe.refuse(misfit->key, misfit->fact, misfit->action);
  }
}

int64_t checked_end(const TrainOptions& options, const Recipe& recipe, int64_t step,
                    const std::filesystem::path& folder) {
  const int64_t steps = recipe.train.steps;
  if (step > steps) {
    throw UsageError({"train", "train.steps", fmt::format("{} steps, but {} are done already", steps, step),
                      recipe.where("train.steps"), fmt::format("use {} or more", step)});
  }
  if (options.stop_after && *options.stop_after <= step) {
    throw UsageError({"train", "--stop-after",
                      fmt::format("{} steps, but {} are done already", *options.stop_after, step), folder.string(),
                      fmt::format("use {} or more", step + 1)});
  }
  return std::min(options.stop_after.value_or(steps), steps);
}

void check_dump(const TrainOptions& options, const Recipe& recipe, const ModelConfig& model, int num_ranks,
                const Steps& steps) {
  const Demand whole{Trait::whole_gradient, "--dump", "writes the gradient of the whole model and of all ranks",
                     "leave --dump out"};
  for (const Setting& technique : techniques_of(recipe)) {
    const auto misfit = find_misfit({&technique, 1}, {{whole}});
    if (options.dump_dir.empty() || num_ranks == 1 || !misfit) continue;
    throw UsageError({"train", misfit->key, misfit->fact, recipe.where(technique.full_name()), misfit->action});
  }
  if (!options.dump_dir.empty()) architecture_of(model);  // a dump has its names and shapes
  for (const int64_t step : options.dump_steps) {
    if (options.dump_dir.empty() || (step >= steps.first && step < steps.end)) continue;
    throw UsageError({"train", "--dump-steps", fmt::format("step {} is not part of this run", step), "",
                      steps.first < steps.end ? fmt::format("choose steps from {} to {}", steps.first, steps.end - 1)
                                              : "the run is complete: leave --dump out"});
  }
}

void check_sample(const Recipe& recipe, const Tokenizer& tokenizer) {
  if (recipe.sample.tokens == 0 || tokenizer.end_of_text()) return;
  if (tokenizer.encode(recipe.sample.prompt).empty()) {
    throw UsageError({"train", "sample.prompt", "is empty, and the tokenizer has no end-of-text token to begin with",
                      recipe.where("sample.prompt"), "give some text, or sample.tokens = 0"});
  }
}

}  // namespace caravan
