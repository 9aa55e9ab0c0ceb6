#pragma once

#include <filesystem>
#include <memory>
#include <optional>

#include "caravan/formats/checkpoint/background_save.h"
#include "caravan/train/evaluation/best_checkpoint.h"
#include "caravan/train/folder/run_state.h"
#include "caravan/train/train.h"

namespace caravan {

/// The checkpoints that a run writes, at once or in the background (checkpoint.async), and which of them is the best
/// one (checkpoint.keep_best). A state that is not finite is neither saved nor replaces an earlier checkpoint.
class RunSaves {
 public:
  /// All arguments outlive this. Every rank calls it and each method, at the same steps.
  RunSaves(std::filesystem::path run, const Recipe& recipe, RunState& state, const TaskRows& rows, Communicator& world,
           TrainObserver& observer);

  /// Marks the state as that of an existing checkpoint.
  void resumed() { saved_step_ = state_.step; }
  /// The step of the last save; -1: none.
  int64_t saved_step() const noexcept { return saved_step_; }
  /// How long saves have delayed this rank since the last call.
  double take_ms();

  /// Whether these metrics have a lower validation loss than all before, and the best checkpoint is kept.
  bool improves(const StepMetrics& metrics) { return best_ && best_->improves(metrics); }
  /// Marks the last checkpoint, which is complete, as the best one.
  void mark_best();

  /// Writes a checkpoint, or starts a background save. Throws as require_finite_state and save_checkpoint.
  void save(bool is_best = false);
  /// Between steps: publishes a background save that has ended.
  void poll();
  /// Waits for a background save.
  void finish();

  /// Throw NumericsError on every rank, after finish(), naming the newest checkpoint: the first if a tensor of the
  /// state is not finite, the second if the validation loss, known to all ranks, is not. The first sends 8 bytes a
  /// rank.
  void require_finite_state();
  void require_finite(double validation_loss);

 private:
  void mark_best(int64_t step);
  void published(const SavedCheckpoint& saved, bool is_best);
  [[noreturn]] void refuse(const std::string& subject, const std::string& fact);

  std::filesystem::path run_;
  const Recipe& recipe_;
  RunState& state_;
  const TaskRows& rows_;
  Communicator& world_;
  TrainObserver& observer_;
  std::optional<BestCheckpoint> best_;
  std::unique_ptr<BackgroundSave> background_;
  bool is_best_ = false;  ///< the save in progress
  double save_ms_ = 0;
  int64_t saved_step_ = -1;
};

}  // namespace caravan
