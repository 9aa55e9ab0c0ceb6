#pragma once

#include <string>
#include <vector>

#include "caravan/formats/checkpoint/manifest.h"
#include "caravan/nn/config.h"
#include "caravan/recipe/recipe.h"

namespace caravan {

/// A run that is resumed from a checkpoint.
struct ResumingRun {
  const Recipe& recipe;
  const ModelConfig& model;
  std::string tokenizer_hash;
  std::string train_hash;
  std::string validation_hash;
};

/// A key that may change in a resumed run, and did.
struct ChangedKey {
  std::string name;
  std::string before;  ///< as TOML
  std::string now;
  std::string to_string() const;  ///< "train.steps is 900, before the resume it was 800", with long values cut
};

/// Refuses to resume from a checkpoint of another run; the OnResume of each key says whether it may change. `folder` is
/// the checkpoint's, for messages. Throws DataError for another model, UsageError for any other forbidden change,
/// naming it with both values. Returns the permitted changes; nothing for a checkpoint without a step of training.
std::vector<ChangedKey> check_resumed_run(const CheckpointInfo& info, const std::string& folder,
                                          const ResumingRun& run);

}  // namespace caravan
