#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "caravan/cost/memory_bytes.h"
#include "caravan/step/sync_report.h"
#include "caravan/train/folder/plan_record.h"
#include "caravan/train/folder/resume_check.h"

namespace caravan {

/// How evenly the routers of a model used their experts in the steps since the last log line.
struct ExpertLoad {
  std::vector<std::vector<int64_t>> copies{};  ///< of tokens, by layer and expert, including dropped ones
  double balance = 0;                          ///< the balance loss, mean over layers and tokens: 1 if all experts are
                                               ///< used evenly
  double dropped = 0;                          ///< fraction of the copies whose expert was full
  /// For one layer or for all: the copies of the least and the most used expert, as multiples of an even share.
  std::pair<double, double> extremes(size_t layer) const;
  std::pair<double, double> extremes() const;
};

/// Of the trained parameters of a layer, in a step with log.tensors.
struct LayerNorms {
  std::string layer;     ///< "embedding", "blocks.0", "head"
  double norm = 0;       ///< of the values before the update
  double grad_norm = 0;  ///< before clipping
  double update = 0;     ///< norm of what the update has changed
};

/// With data.task = "preference": means over pairs.
struct RewardMeans {
  double chosen = 0;  ///< rewards of the answers: see nn/loss/preference_loss.h
  double rejected = 0;
  double accuracy = 0;  ///< fraction of the pairs whose chosen answer has the higher reward
  double margin() const noexcept { return chosen - rejected; }
};

/// One line of train.log.
struct StepMetrics {
  int64_t step = 0;      ///< steps done, this one included: the first line says 1
  double loss = 0;       ///< nats per target token, mean over the global batch, before the update
  double grad_norm = 0;  ///< before clipping
  double lr = 0;
  int64_t tokens = 0;  ///< trained on since the start of the run, all ranks
  double step_ms = 0;
  double tokens_per_second = 0;        ///< of all ranks
  double comm_ms = 0;                  ///< time that this rank waited for its peers
  int64_t bytes_sent = 0;              ///< by this rank in this step
  int64_t peak_memory_bytes = 0;       ///< of this rank's tensors, since the start
  int64_t state_bytes = 0;             ///< of this rank's parameters, gradients and optimizer state
  int64_t predicted_memory_bytes = 0;  ///< peak predicted by the rehearsal
  /// Peaks beyond the device, with offload.
  struct Beyond {
    int64_t host_bytes = 0, predicted_host_bytes = 0;
    int64_t disk_bytes = 0, predicted_disk_bytes = 0;
  };
  std::optional<Beyond> beyond{};
  int64_t predicted_resident_bytes = 0;     ///< for all processes of the run: see resident_bytes
  double model_flops_per_second = 0;        ///< of all ranks
  double save_ms = 0;                       ///< time that checkpoints delayed the run since the last line
  std::optional<MemoryBytes> predicted{};   ///< the predicted peak by kind: in the first line that a run writes
  std::optional<double> loss_scale{};       ///< of this step (fp16)
  std::optional<int64_t> skipped_steps{};   ///< skipped because of overflow, since the start (fp16)
  std::optional<int64_t> skipped_spikes{};  ///< with optimizer.skip_spikes, since the start
  std::string spike{};                      ///< why loss or norm of this step stand out; "": they do not
  std::string slowdown{};                   ///< that steps have become slow, with the cause, or fast again; "": no news
  std::vector<LayerNorms> layers{};         ///< with log.tensors, at its steps
  std::vector<double> bubble{};          ///< in a pipeline: the fraction of the step in which each stage's rank waits
  std::optional<ExpertLoad> experts{};   ///< for a model with experts
  std::optional<RewardMeans> rewards{};  ///< of the pairs since the last log line, with data.task = "preference"
  std::optional<double> val_loss{};
  std::optional<double> val_bits_per_byte{};  ///< of texts
  std::optional<double> val_accuracy{};       ///< with data.task = "masked", "classify" or "preference"
  std::optional<double> val_macro_f1{};       ///< with data.task = "classify"
  std::optional<double> val_loss_average{};   ///< of the average of the weights, with optimizer.average
  /// If ranks do not wait for each other (AsyncTrainer), a line describes a drain: `step` is the slowest rank's; loss
  /// and norm are the means over all steps of all ranks since the previous drain, each over its own rows; step_ms,
  /// comm_ms and bytes_sent are those of a step of this rank.
  std::optional<SyncReport> drain{};
  std::string time{};  ///< when the line was made, e.g. "2026-03-01T09:30:05.250Z"; "": not recorded
  std::string host{};  ///< of rank 0

  std::string to_json() const;
};

/// A file of JSON lines, one per step. Each is handed to the system before the call returns, so that a killed process
/// loses none.
class StepLines {
 public:
  /// Appends to `path`; lines of steps after `last_step` (of a run that continued past its last checkpoint) are dropped
  /// first.
  StepLines(std::filesystem::path path, int64_t last_step);
  void write(const std::string& line);
  /// Replaces the whole file, durably.
  void replace(const std::string& text);

 private:
  std::filesystem::path path_;
  std::ofstream file_;
};

/// The logs of a run: train.log, a line for each logged step, and samples.jsonl, a line for each sampled text.
class MetricsLog {
 public:
  /// The run continues after `last_step`.
  MetricsLog(const std::filesystem::path& run, int64_t last_step);
  void write(const StepMetrics& metrics) { log_.write(metrics.to_json()); }
  /// Writes a line with the recipe keys that a resume after `step` changed; nothing if there are none.
  void write_changes(int64_t step, const std::vector<ChangedKey>& changed);
  void write_comparison(int64_t step, const PlanComparison& comparison) { log_.write(comparison.to_json(step)); }
  /// `text`: the prompt and its continuation.
  void write_sample(int64_t step, const std::string& text);

  /// For the step after which this run continues: the validation loss in the log, and whether samples.jsonl has a text.
  std::optional<double> last_validation() const;
  bool has_last_sample() const;
  /// Adds the evaluation in `metrics`, of that step, to its line, as if the run had not been stopped in between. Adds
  /// a line if there is none.
  void add_evaluation(const StepMetrics& metrics);

 private:
  std::filesystem::path run_;
  int64_t last_step_;
  StepLines log_;
  std::optional<StepLines> samples_;  ///< created with the first sample
};

}  // namespace caravan
