#pragma once

#include <filesystem>

#include "caravan/data/tokenizer/tokenizer.h"
#include "caravan/formats/checkpoint/manifest.h"
#include "caravan/train/train.h"

namespace caravan {

// What would end a run later ends it before its first step. All throw UsageError naming the key or the option.

/// Where ranks compute the same thing each for itself and have to agree on it, they use the same number of threads.
void check_threads(const Recipe& recipe, const Numerics& numerics);

/// The step at which a run that has done `step` stops. Throws for one that is done already.
int64_t checked_end(const TrainOptions& options, const Recipe& recipe, int64_t step,
                    const std::filesystem::path& folder);

struct Steps {
  int64_t first;
  int64_t end;
};
/// Of --dump: steps of this run, of a technique that has whole gradients and a model that transformers has.
void check_dump(const TrainOptions& options, const Recipe& recipe, const ModelConfig& model, int num_ranks,
                const Steps& steps);

/// The sample after training has something to begin with.
void check_sample(const Recipe& recipe, const Tokenizer& tokenizer);

}  // namespace caravan
