#pragma once

#include <exception>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "caravan/cost/hardware_costs.h"
#include "caravan/plan/predict_rehearsed.h"
#include "caravan/session/module_rehearsal.h"
#include "caravan/session/plan_layouts.h"
#include "caravan/session/trainable_parts.h"

namespace caravan {

/// Units of a net that follow each other and compute the same, such as the blocks of a transformer: `count` times
/// `period` units from `begin` on.
struct UnitRepeats {
  size_t begin = 0, period = 1, count = 0;
  std::vector<std::vector<std::string>> parameters{};  ///< of each of them, by name
};

/// Units are the same if their parameters have the same shapes, and they the same kernels in a step that was rehearsed.
UnitRepeats find_repeats(const std::vector<TrainableParts::UnitFacts>& units, const StepTimeline& step);

/// A step of a user's module on hardware.
struct PlannedStep {
  const Trainable& net;
  const StepData& sample;  ///< the whole batch
  const MakeOptimizer& optimizer;
  const ParallelOptions& options;
  const Hardware& hardware;
  StepWork work;
  UnitRepeats repeats{};
};

/// Predicts layouts of a step.
class LayoutPredictor {
 public:
  /// Both outlive this, and `kept` belongs to the net.
  LayoutPredictor(const PlannedStep& step, const LayoutSpace& space, const KeptTensors& kept);

  /// By a rehearsal of a rank of each stage. Without stages, micro-batches after the third are like it. Throws what the
  /// rehearsal throws.
  Prediction predict(const StepLayout& layout) const;
  /// The same, extrapolated from fewer micro-batches in a pipeline too, between whose first and last all take equal
  /// times, and from fewer of the units that are the same.
  Prediction estimate(const StepLayout& layout) const;

 private:
  /// A line through a smaller step and a larger one.
  struct Line {
    int64_t low, high, at;
    bool is_point() const { return low == high; }
    double share() const { return is_point() ? 0 : static_cast<double>(at - low) / static_cast<double>(high - low); }
  };
  Line micro_batches_of(const StepLayout& layout, bool is_whole) const;
  /// In units.
  Line units_of(const StepLayout& layout) const;
  const Trainable& net_with(int64_t num_units) const;
  /// Whether the units that are the same are split alike.
  bool are_split_alike(const StepLayout& layout) const;
  std::vector<Technique> techniques(const StepLayout& layout, int64_t num_units) const;

  /// A step with so many micro-batches of the same size: a rank of each place.
  std::vector<Rehearsal> rehearsed(const StepLayout& layout, int64_t micro_batches, int64_t num_units) const;
  RepeatedBatches batches_of(const StepLayout& layout, const Line& micro_batches) const;
  Prediction between(const StepLayout& layout, const Line& micro_batches, const Line& units) const;

  const PlannedStep& step_;
  const LayoutSpace& space_;
  const KeptTensors& kept_;
  HardwareCosts costs_;
  mutable std::map<int64_t, Trainable> shorter_;  ///< nets with fewer units, by their number
};

/// A layout, and what to expect of it.
struct FoundLayout {
  StepLayout layout;
  std::string text;
  Prediction prediction;
};

struct FoundLayouts {
  /// The fastest that fit, the fastest first; if none fits, those that need the least memory.
  std::vector<FoundLayout> best{};
  std::vector<FoundLayout> estimated{};  ///< all that were considered, the best first
  bool is_complete = true;               ///< false: time was up
  std::exception_ptr why_not{};          ///< of the first of those that cannot run
};

/// From the seeds of the space to the best neighbours, until none is better. `is_over` is asked before each estimate:
/// where several ranks search, it has the same answer on all of them, so that they find the same.
FoundLayouts search_step_layouts(const LayoutSpace& space, const LayoutPredictor& predictor,
                                 const std::function<bool()>& is_over, size_t most_rows);

}  // namespace caravan
