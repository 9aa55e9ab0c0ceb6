#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "caravan/cost/hardware.h"
#include "caravan/cost/rehearsal.h"
#include "caravan/cost/simulate.h"
#include "caravan/plan/predict_rehearsed.h"
#include "caravan/plan/prediction.h"
#include "caravan/recipe/recipe.h"

namespace caravan {

/// The number of neighbouring ranks that share memory, of `per_host` on a host; 0: none, as the back-end has it.
int ranks_sharing_memory(const Recipe& recipe, int per_host);

/// Where predictions are made: a recipe's model on the ranks of some hardware.
class Predictor {
 public:
  /// Uses the first `num_ranks` devices. Throws UsageError if there are fewer. `hardware` and `costs` outlive this.
  Predictor(const Hardware& hardware, const StepCosts& costs, int num_ranks, int64_t vocabulary);

  /// By a rehearsal of the whole step of a rank of each place of the pipeline. Throws what the rehearsal throws.
  Prediction predict(const Recipe& recipe, std::vector<SimulatedStep::Span>* spans = nullptr) const;
  /// By rehearsals of models with fewer layers and, in a pipeline, of fewer micro-batches. Times and memory are linear
  /// in layers, of which each stage has as many fewer. More micro-batches repeat a block of passes, or else are linear
  /// too.
  Prediction estimate(const Recipe& recipe) const;

  Rehearsal rehearse_rank(const Recipe& recipe, int rank) const;
  /// Of the first rank of each place of the pipeline, with the device of the slowest one.
  std::vector<Rehearsal> rehearse_places(const Recipe& recipe) const { return rehearse_places(recipe, num_ranks_); }
  /// The same on another number of such ranks, which may be more than there are.
  std::vector<Rehearsal> rehearse_places(const Recipe& recipe, int num_ranks) const;

  /// The least memory of a device, of all or of a place of `places`, or the recipe's budget if that is less; 0:
  /// unknown.
  int64_t room_bytes(const Recipe& recipe, int place = 0, int64_t places = 1) const;
  int num_ranks() const noexcept { return num_ranks_; }
  const Hardware& hardware() const noexcept { return hardware_; }
  const StepCosts& costs() const noexcept { return costs_; }
  int64_t vocabulary() const noexcept { return vocabulary_; }

 private:
  Rehearsal rehearse_rank(const Recipe& recipe, int rank, int num_ranks,
                          const std::shared_ptr<RecordedNumbers>& numbers) const;
  StepWork work_of(const Recipe& recipe) const;

  const Hardware& hardware_;
  const StepCosts& costs_;
  int num_ranks_;
  int64_t vocabulary_;
};

}  // namespace caravan
