#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "caravan/cost/hardware.h"
#include "caravan/cost/rehearsal.h"
#include "caravan/cost/simulate.h"
#include "caravan/recipe/recipe.h"

namespace caravan {

/// What to expect of a recipe on some hardware.
struct Prediction {
  double seconds = 0;            ///< of a step
  double tokens_per_second = 0;  ///< of all ranks
  double utilisation = 0;        ///< model FLOPs by the peak of all devices in the dtype of the arithmetic
  double computes = 0;           ///< seconds of the slowest rank in kernels
  double of_products = 0;        ///< of these, in products and attention
  double on_host = 0;            ///< seconds that the host steps the optimizer
  Rehearsal::Moved moved{};      ///< bytes between tiers, of the rank that moves most
  double idles = 0;              ///< of the slowest rank: neither in kernels nor waiting for an axis that it sends over
  std::map<std::string, double> waits{};  ///< of the slowest rank, by axis; "host", "disk": for what is offloaded
  MemoryBytes memory{};                   ///< peak of the fullest rank
  int fullest_rank = 0;
  std::string peak_event{};
  int64_t room_bytes = 0;       ///< of a device, or its budget if less; 0: unknown
  int64_t host_bytes = 0;       ///< of all ranks of a host, in its memory beyond devices
  int64_t host_room_bytes = 0;  ///< 0: unknown
  bool fits() const noexcept {
    return (room_bytes <= 0 || memory.total() <= room_bytes) && (host_room_bytes <= 0 || host_bytes <= host_room_bytes);
  }
};

/// What Prediction::waits is for, in a text: an axis, or "the last rank" for calls of all ranks.
std::string wait_name(const std::string& axis);

/// The number of neighbouring ranks that share memory, of `per_host` on a host; 0: none, as the back-end has it.
int ranks_sharing_memory(const Recipe& recipe, int per_host);

/// A smaller step of the same kind.
struct StepSizes {
  std::vector<int64_t> layers{};  ///< of each stage
  int64_t micro_batches = 0;
};

/// Where predictions are made: a recipe's model on the ranks of some hardware.
class Predictor {
 public:
  /// Uses the first `num_ranks` devices. Throws UsageError if there are fewer. `hardware` and `costs` outlive this.
  Predictor(const Hardware& hardware, const StepCosts& costs, int num_ranks, int64_t vocabulary);

  /// By a rehearsal of the whole step of a rank of each place of the pipeline. Throws what the rehearsal throws.
  Prediction predict(const Recipe& recipe, std::vector<SimulatedStep::Span>* spans = nullptr) const;
  /// By rehearsals of models with fewer layers and, in a pipeline, of fewer micro-batches, extrapolated in both: layers
  /// are equal, and micro-batches between the first and the last take equal times.
  Prediction estimate(const Recipe& recipe) const;

  /// The rehearsal of a rank of each place of the pipeline, the slowest one.
  std::vector<Rehearsal> rehearse_places(const Recipe& recipe) const;
  /// The same for fewer ranks.
  Predictor of_first(int num_ranks) const { return {hardware_, costs_, num_ranks, vocabulary_}; }

  /// The least memory of a device, or the recipe's budget if that is less; 0: unknown.
  int64_t room_bytes(const Recipe& recipe) const;
  int num_ranks() const noexcept { return num_ranks_; }
  const Hardware& hardware() const noexcept { return hardware_; }
  const StepCosts& costs() const noexcept { return costs_; }

 private:
  int slowest_of(int first, int count, const std::string& dtype) const;
  Prediction without_offload(const std::vector<Rehearsal>& rehearsals, std::vector<SimulatedStep::Span>* spans) const;
  Prediction with_micro_batches(const Recipe& recipe, const StepSizes& low, const StepSizes& high,
                                const BatchPlan& plan) const;
  void add_offload(Prediction& prediction, const Recipe& recipe) const;
  void add_rates(Prediction& prediction, const Recipe& recipe) const;

  const Hardware& hardware_;
  const StepCosts& costs_;
  int num_ranks_;
  int64_t vocabulary_;
};

}  // namespace caravan
