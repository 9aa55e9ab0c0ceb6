#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "caravan/cost/hardware.h"
#include "caravan/global/names.h"
#include "caravan/module/meta/shapes_only.h"
#include "caravan/plan/prediction.h"
#include "caravan/session/trials.h"

namespace caravan {

/// What a plan is for.
struct PlanOptions {
  /// preset_hardware({.device = "rtx-4090", .per_host = 8}), or read_hardware(file). Without hosts: what the ranks of
  /// the session are, which is measured.
  Hardware hardware{};
  int ranks = 0;  ///< of its first devices; 0: all
  /// None given: AdamW of this library. One of whole parameters: no layer is split.
  MakeOptimizer optimizer{};
  /// Of all layouts but for the micro-batches, which the plan chooses.
  ParallelOptions parallel{};
  /// In all layouts, such as mixed_precision(). Of their families nothing else is chosen.
  std::vector<Technique> fixed{};
  /// Whether the net may be split over an axis tp, by the layouts of candidates() (session/candidates.h). In place of
  /// that, fixed may have a tensor() on this axis.
  bool splits_layers = true;
  std::vector<DimNames> names{};  ///< of dims of parameters, for candidates()
  DimExtents extents{};
  double seconds = 20;    ///< of processor time, for estimates; those of rows that are listed come on top
  size_t most_rows = 10;  ///< that are listed
};

/// A way to run the step of a module, and what to expect of it.
struct PlannedModule {
  std::string text{};  ///< "pp 2 (1f1b) x dp 4 x tp 2, zero1, recompute full, 8 x 2 rows": micro-batches and their rows
  int dp = 1, pp = 1, tp = 1;
  std::vector<Technique> techniques{};  ///< for parallelize()
  ParallelOptions options{};            ///< for parallelize()
  Prediction prediction{};
  /// The C++ lines that run it: a Session and a parallelize().
  std::string to_code() const;
};

struct ModulePlan {
  std::string subject{};  ///< lines about the hardware and the net
  /// The fastest that fit, the fastest first; if none fits, those that need the least memory. Not empty.
  std::vector<PlannedModule> best{};
  size_t num_estimated = 0;
  bool is_complete = true;            ///< false: time was up
  std::vector<std::string> advice{};  ///< sentences with numbers, each the difference of two layouts
  bool fits() const noexcept { return !best.empty() && best.front().prediction.fits(); }
  /// What `caravan plan` prints: hardware, table, sentences; and the lines of code of the best layout.
  std::string to_string() const;
};

/// Searches the best way to run a step of a user's module on some hardware, by rehearsals of the step: memory, time,
/// and why not the others (docs/plan.md). It chooses the data-parallel technique and its keys, how tensor() splits
/// layers, stages and their schedule if the net has units, micro-batches, recomputation, and what rests on the host of
/// an accelerator; all of it computes the gradient of one process. Moments rest there if the optimizer is of this
/// library.
///
///   ModulePlan found = plan(net, session, {x, y, loss_of}, {.hardware = preset_hardware({"rtx-4090", 8})});
///   std::puts(found.to_string().c_str());
///
/// `sample` is the whole batch of a step, of all ranks; its values do not matter and it may be of meta tensors. The net
/// is left as it was, without gradients; its tensors are not copied. One that is larger than this machine is made by
/// shapes_only().
///
/// Every rank of the session calls it with the same arguments and gets the same plan; they send only whether time is
/// up. Without hardware in the options they are measured, all at once, in a few seconds; the cache folder keeps this
/// for a day (job_hardware).
///
/// Throws UsageError for a Module of this library (`caravan plan` plans these), a loss that is no scalar, a net or loss
/// with an operation that needs values, naming it, rows that cannot be dealt evenly to the ranks, more ranks than
/// devices; for arguments that differ between ranks; and the error of the first layout if none can run.
ModulePlan plan(const Trainable& net, const Session& session, const StepData& sample, PlanOptions options = {});
/// The same in one process, while a Session or Runtime exists, for the hardware of the options.
ModulePlan plan(const Trainable& net, const StepData& sample, const PlanOptions& options);

}  // namespace caravan
