#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "caravan/comm/communicator.h"
#include "caravan/formats/checkpoint/manifest.h"
#include "caravan/recipe/recipe.h"
#include "caravan/train/dataset/dataset.h"
#include "caravan/train/dataset/prepare.h"
#include "caravan/train/folder/metrics.h"
#include "caravan/train/folder/plan_record.h"
#include "caravan/train/model/micro_batch.h"
#include "caravan/train/step_range.h"

namespace caravan {

/// The plan of a run, reported before the memory of its model is allocated, so that a rank killed for lack of memory
/// has reported its size.
struct TrainPlan {
  std::filesystem::path run;
  BatchPlan batch;
  MemoryPlan memory;
  std::string_view backend;
  std::string mesh{};   ///< "dp 2 x tp 4 (2d)"; "": dp alone
  std::string order{};  ///< see order_text
  int64_t num_parameters = 0;
  int64_t vocabulary = 0;
  int64_t train_tokens = 0;  ///< 0: streamed, not known
  int64_t first_step = 0;    ///< steps done before; 0 unless resumed
  Numerics numerics{};
};

/// The begin and end of a run, once everything is loaded.
struct TrainStart {
  int64_t first_step = 0;            ///< steps done before; 0 unless resumed
  int64_t last_step = 0;             ///< steps done when it ends
  std::vector<std::string> notes{};  ///< notes for the user, a line each
  std::string dtypes{};              ///< dtypes in use: RunState::dtypes
  std::string stages{};              ///< of a pipeline: see RunState::stages
  MemoryBytes state{};               ///< memory that this rank has allocated, by kind
};

/// Observes a run. One rank has one; it does not affect the run.
class TrainObserver {
 public:
  virtual ~TrainObserver() = default;
  /// Called a few times a second while the data is prepared, before planned().
  virtual void preparing(const DataProgress&) {}
  virtual void planned(const TrainPlan&) {}
  virtual void started(const TrainStart&) {}
  /// Called after every step; `is_logged` if train.log has the line.
  virtual void stepped(const StepMetrics&, bool is_logged) { (void)is_logged; }
  /// At the start of a continued run: the interrupted evaluation of its last step is now in train.log.
  virtual void made_up(const StepMetrics& metrics) { (void)metrics; }
  virtual void evaluating(int64_t step) { (void)step; }
  /// Called before each of the `total` rounds of forward passes of an evaluation.
  virtual void evaluation_progress(int64_t done, int64_t total) { (void)done, (void)total; }
  virtual void saved(const std::filesystem::path& checkpoint) { (void)checkpoint; }
  virtual void traced(const std::filesystem::path& file) { (void)file; }
  /// At the end of a run with TrainOptions::plan.
  virtual void compared(const PlanComparison&) {}
  /// Something went wrong that does not stop the run.
  virtual void warned(std::string_view text) { (void)text; }
  /// A piece of a text generated during or after training; the first piece is the prompt.
  virtual void sampled(std::string_view text) { (void)text; }
};

struct TrainOptions {
  Recipe recipe{};
  DataFolders folders{};
  bool plans = false;                         ///< --auto: the layout is to be chosen, see choose_layout
  std::optional<PlanRecord> plan{};           ///< what has chosen the layout of the recipe; nothing: the user
  bool resume = false;                        ///< resumes from the newest checkpoint of the run
  std::string resume_from{};                  ///< resumes from this one, "step_000200" or its path; "": not given
  std::optional<int64_t> stop_after{};        ///< ends, with a checkpoint, when this many steps of the run are done
  std::filesystem::path dump_dir{};           ///< empty: none
  std::set<int64_t> dump_steps{};             ///< counted from 0
  std::filesystem::path trace_file{};         ///< empty: none
  std::optional<StepRange> trace_steps{};     ///< as the log counts them; default: see RunTrace
  std::function<bool()> stop_requested = {};  ///< asked once a step; true on any rank stops all after the same step
  TrainObserver* observer = nullptr;

  bool resumes() const { return resume || !resume_from.empty(); }
};

/// A training run from start (or a checkpoint) to end: every rank of `world` calls it with the same options
/// (stop_requested and observer are the rank's own). Writes train.log and checkpoints into the run folder.
///
/// Before the first step the ranks compare their inputs (see start_facts), their data and the checkpoint; if anything
/// differs, all of them throw UsageError or DataError naming it with the values of two ranks.
///
/// With a plan, the run folder gets it, and at the end train.log has a line about how far it was from the run.
///
/// A resumed run first repeats an evaluation or a sample of its last step that a stop interrupted. A state or a
/// validation loss that is not finite is not saved: NumericsError.
///
/// Throws Interrupted after a requested stop, when the checkpoint is written; UsageError, DataError, ResourceError,
/// CommError and NumericsError as the parts do. No error affects the last complete checkpoint.
void train(const TrainOptions& options, const std::shared_ptr<Communicator>& world);

}  // namespace caravan
