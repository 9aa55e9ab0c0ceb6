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

namespace caravan {

/// A step of a user's module on hardware.
struct PlannedStep {
  const Trainable& net;
  const StepData& sample;  ///< the whole batch
  const MakeOptimizer& optimizer;
  const ParallelOptions& options;
  const Hardware& hardware;
  StepWork work;
};

/// Predicts layouts of a step.
class LayoutPredictor {
 public:
  /// Both outlive this, and `kept` belongs to the net.
  LayoutPredictor(const PlannedStep& step, const LayoutSpace& space, const KeptTensors& kept);

  /// By a rehearsal of a rank of each stage. Without stages, micro-batches after the third are like it. Throws what the
  /// rehearsal throws.
  Prediction predict(const StepLayout& layout) const;
  /// The same with few micro-batches in a pipeline too, between whose first and last all take equal times.
  Prediction estimate(const StepLayout& layout) const;

 private:
  /// Of a step with fewer micro-batches of the same size; not complete.
  Prediction with_micro_batches(const StepLayout& layout, int64_t micro_batches) const;
  Prediction between(const StepLayout& layout, int64_t low, int64_t high) const;

  const PlannedStep& step_;
  const LayoutSpace& space_;
  const KeptTensors& kept_;
  HardwareCosts costs_;
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
