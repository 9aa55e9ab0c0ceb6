#pragma once

#include <memory>
#include <optional>

#include "caravan/data/tokenizer/tokenizer.h"
#include "caravan/engine/engine.h"
#include "caravan/engine/stages/stage_runner.h"
#include "caravan/generate/frozen_model.h"
#include "caravan/recipe/recipe.h"
#include "caravan/step/batch.h"
#include "caravan/train/folder/metrics.h"

namespace caravan {

/// The loss of data.task = "preference" as the recipe says.
PreferenceSettings preference_settings(const PreferenceChoice& choice);

/// The reference model of a run that learns preferences: a model in a folder, split as the run's own is, or the run's
/// own without its adapters. It computes the log probabilities of each batch before the step. Also adds up the rewards
/// that the run logs.
class ReferenceModel {
 public:
  /// `engine`: of the model that is trained, which outlives this. `mesh`: the run's, as mesh_axes makes it. Every rank
  /// calls it. Throws as FrozenModel::beside, UsageError for a model that cannot be the reference of this one, and for
  /// techniques under which ranks do not step together if there is no folder.
  ReferenceModel(const Recipe& recipe, const Tokenizer& tokenizer, Engine& engine, const Mesh& mesh);
  /// For a rehearsal, on the meta device. Throws DataError for a missing folder.
  ReferenceModel(const Recipe& recipe, Engine& engine, const Mesh& mesh);

  /// Gives this rank's batch of a step the log probabilities of its sequences. Every rank calls it between steps.
  void score(TrainBatch& batch, int64_t num_micro_batches);
  /// The sum of the losses of some pairs, the rows of `ids` and `labels`, by `runner` of the engine, between
  /// begin_evaluation() and end_evaluation(); undefined on ranks without the last stage. Every rank calls it.
  at::Tensor evaluate(StageRunner& runner, const at::Tensor& ids, const at::Tensor& labels);

  /// The means over the pairs of all ranks since the last call; nothing if there were none. Every rank calls it. Sends
  /// 32 bytes.
  std::optional<RewardMeans> take_rewards();

  /// "the weights under the adapters", or the folder; for the log of the run.
  std::string to_string() const;

 private:
  void score_micro_batches(TrainBatch& batch, int64_t num_micro_batches);

  PreferenceSettings settings_;
  Engine& engine_;
  std::optional<FrozenModel> folder_{};    ///< none: the run's own model without its adapters
  std::optional<StageRunner> own_runner_;  ///< then
  std::shared_ptr<PreferenceSums> sums_ = std::make_shared<PreferenceSums>();
};

}  // namespace caravan
