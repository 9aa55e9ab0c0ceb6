#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "caravan/checkpoint/checkpoint.h"
#include "caravan/data/sampler.h"
#include "caravan/data/tokenizer.h"
#include "caravan/mesh/mesh.h"
#include "caravan/nn/model.h"
#include "caravan/optim/learning_rate.h"
#include "caravan/optim/optimizer.h"
#include "caravan/parallel/ddp.h"
#include "caravan/train/recipe.h"
#include "caravan/train/step.h"

namespace caravan {

/// What a training run has learned so far, on this rank: all that a checkpoint keeps.
class RunState {
 public:
  /// Makes the model of the recipe for this tokenizer, with its starting weights, over `mesh`.
  RunState(const Recipe& recipe, const Tokenizer& tokenizer, const Mesh& mesh);

  int64_t step = 0;  ///< optimizer steps done

  Model& model() noexcept { return *model_; }
  Ddp& ddp() noexcept { return *ddp_; }
  Optimizer& optimizer() noexcept { return *optimizer_; }
  const Tokenizer& tokenizer() const noexcept { return tokenizer_; }
  const LearningRate& learning_rate() const noexcept { return rate_; }

  /// Every rank calls it. Returns the folder of the new checkpoint.
  std::filesystem::path save(const std::filesystem::path& run, int64_t keep, const Sampler& sampler);
  /// Takes up the newest checkpoint of `run`, written on any number of ranks. Throws DataError for one that is damaged
  /// or of another model, UsageError for one of another tokenizer, seed, batch or optimizer: what goes on from it would
  /// not be the run it was.
  void load(const std::filesystem::path& run, const Sampler& sampler);

 private:
  void check_recipe(const CheckpointInfo& info, const std::string& folder) const;
  std::vector<CheckpointPiece> pieces();

  const Recipe& recipe_;
  Tokenizer tokenizer_;
  Mesh mesh_;
  LearningRate rate_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<Ddp> ddp_;
  std::unique_ptr<Optimizer> optimizer_;
};

/// Rows of the training text: row r is sample first_sample + r.
TrainBatch make_batch(const TokenFile& tokens, const Sampler& sampler, int64_t first_sample, int64_t rows);

/// recipe.toml and tokenizer.json of a run folder, which is made if it is not there. Throws ResourceError.
void write_run_files(const std::filesystem::path& run, const Recipe& recipe, const Tokenizer& tokenizer);

}  // namespace caravan
