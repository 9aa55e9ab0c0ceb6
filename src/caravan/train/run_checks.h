#pragma once

#include <filesystem>

#include "caravan/data/tokenizer/tokenizer.h"
#include "caravan/formats/checkpoint/manifest.h"
#include "caravan/train/train.h"

namespace caravan {

// Checks before the first step for problems that would end a run later. All throw UsageError naming the key or the
// option.

/// Requires the same number of threads on ranks that compute the same values independently and must agree.
void check_threads(const Recipe& recipe, const Numerics& numerics);

/// The step at which a run that has done `step` stops. Throws for a run that is already done.
int64_t checked_end(const TrainOptions& options, const Recipe& recipe, int64_t step,
                    const std::filesystem::path& folder);

struct Steps {
  int64_t first;
  int64_t end;
};
/// For --dump: requires steps of this run, a technique with whole gradients and a model that transformers has.
void check_dump(const TrainOptions& options, const Recipe& recipe, const ModelConfig& model, int num_ranks,
                const Steps& steps);

/// Requires that the sample after training has a prompt or token to begin with.
void check_sample(const Recipe& recipe, const Tokenizer& tokenizer);

}  // namespace caravan
