#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "caravan/data/tasks/task_rows.h"
#include "caravan/data/tokenizer/tokenizer.h"
#include "caravan/formats/checkpoint/state_checkpoint.h"
#include "caravan/formats/huggingface/text_settings.h"
#include "caravan/mesh/mesh.h"
#include "caravan/optim/learning_rate.h"
#include "caravan/recipe/init_from.h"
#include "caravan/recipe/recipe.h"
#include "caravan/train/folder/resume_check.h"
#include "caravan/train/model/trained_model.h"

namespace caravan {

/// Where the numbers of a run come from, beyond its recipe; kept in checkpoints.
struct RunOrigin {
  std::string train_hash{};  ///< hash of the token files; see CheckpointInfo
  std::string validation_hash{};
  Numerics numerics{};
  std::vector<std::string> class_names{};  ///< of data.task = "classify"
};

/// The model of `recipe` with the vocabulary of `tokenizer`, unless the recipe has one. Throws UsageError if that is
/// too small for the tokenizer.
ModelConfig model_config(const Recipe& recipe, const Tokenizer& tokenizer);

/// The state of a training run on this rank: all that a checkpoint keeps.
class RunState {
 public:
  /// Creates the model of the recipe for this tokenizer, with its initial weights, over `mesh`. The recipe outlives
  /// this.
  RunState(const Recipe& recipe, const Tokenizer& tokenizer, const Mesh& mesh, RunOrigin origin = {});

  int64_t step = 0;  ///< optimizer steps done; of the slowest rank if ranks do not wait for each other
  /// Steps done by each rank if ranks do not wait for each other; else empty.
  std::vector<int64_t> clocks{};

  TrainedModel& trained() noexcept { return *trained_; }
  Model& model() noexcept { return *trained_->model; }
  Engine& engine() noexcept { return *trained_->engine; }
  /// The dtypes in use: "parameters fp32, compute bf16, gradients fp32, reduction fp32, optimizer fp32".
  std::string dtypes() const;
  /// The units of each stage of a pipeline: "embedding to blocks.1 | blocks.2 to head"; "" without a pipeline.
  std::string stages() const;
  Optimizer& optimizer() noexcept { return *trained_->optimizer; }
  /// Null unless the run computes in fp16.
  LossScale* loss_scale() noexcept { return trained_->loss_scale ? &*trained_->loss_scale : nullptr; }
  /// Null unless the run skips spikes.
  const SpikeGuard* spike_guard() const noexcept { return trained_->spike_guard ? &*trained_->spike_guard : nullptr; }
  const Tokenizer& tokenizer() const noexcept { return tokenizer_; }
  const SpecialTokens& tokens() const noexcept { return tokens_; }
  const LearningRate& learning_rate() const noexcept { return rate_; }

  /// The content of a checkpoint of this step, for save_checkpoint. The tensors are those of the run.
  CheckpointInfo info(const TaskRows& rows) const;
  std::vector<CheckpointPiece> pieces() const { return checkpoint_pieces(trained_->tensors, mesh_); }
  /// Every rank calls it. See save_checkpoint.
  SavedCheckpoint save(const std::filesystem::path& run, int64_t keep, const TaskRows& rows) {
    return save_checkpoint(run, info(rows), pieces(), mesh_.world(), keep);
  }
  /// Adds the tensors of `owner`, which outlives this. Call it before load().
  void add(StateOwner& owner) { trained_->tensors.add(owner); }
  /// Resumes from checkpoint `folder`, written on any number of ranks. Throws DataError for one that is damaged (naming
  /// the newest intact one) or of another model, UsageError for one of another run: see check_resumed_run.
  void load(const std::filesystem::path& folder, const TaskRows& rows);
  /// Starts with the weights and the special tokens of another model, in place of random weights. Returns the names of
  /// parameters that keep theirs: see load_weights.
  std::vector<std::string> start_from(const InitSource& source);
  /// The keys that the recipe changes in the run that `load` resumed.
  const std::vector<ChangedKey>& changed_keys() const noexcept { return changed_keys_; }

 private:
  void read(const std::filesystem::path& folder, const TaskRows& rows);
  void take_tokens(SpecialTokens source);

  const Recipe& recipe_;
  Tokenizer tokenizer_;
  SpecialTokens tokens_;  ///< of an imported model; default: the tokenizer's
  Mesh mesh_;
  RunOrigin origin_;
  std::vector<ChangedKey> changed_keys_;
  LearningRate rate_;
  std::unique_ptr<TrainedModel> trained_;
};

/// Writes recipe.toml and tokenizer.json to a run folder, which is created if needed. Throws ResourceError.
void write_run_files(const std::filesystem::path& run, const Recipe& recipe, const Tokenizer& tokenizer);

}  // namespace caravan
