#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace caravan {

/// One way to compute a unit of a model (embedding, a layer, head): activations kept or computed again, split or whole.
struct UnitWay {
  double seconds = 0;      ///< of a micro-batch, forward and backward
  double kept_bytes = 0;   ///< for each micro-batch in flight
  double state_bytes = 0;  ///< whatever is in flight
};

/// A stage and the device of it.
struct StageDevice {
  double slowness = 1;    ///< times UnitWay::seconds
  double in_flight = 1;   ///< micro-batches
  double room_bytes = 0;  ///< 0: unknown, everything fits
};

struct UnitProblem {
  std::vector<std::vector<UnitWay>> units{};  ///< the ways of each unit, in order
  /// Seconds from a way of a unit to one of the next, forward and backward: what is redistributed. Empty: none.
  std::vector<std::vector<double>> switch_seconds{};
  std::vector<StageDevice> stages{};
  double message_seconds = 0;  ///< between two stages, forward and backward
  int64_t micro_batches = 1;
};

struct UnitChoice {
  std::vector<int64_t> units_of_stage{};
  std::vector<size_t> ways{};  ///< by unit
  double seconds = 0;          ///< of a step: all stages once, and the slowest for each further micro-batch
};

/// Cuts units into contiguous stages, each with one at least, and chooses a way for each, so that a step takes the
/// least time and each stage fits its device. The two levels of Alpa (Zheng et al., arXiv 2201.12023): inside a stage
/// the best ways for each number of bytes, over stages dynamic programming for each bound of the slowest stage. Exact
/// but for two roundings: bounds, by less than a thousandth, and where there are many sums of bytes, each unit's bytes
/// by up to a thousandth of the room. Nothing if no choice fits.
std::optional<UnitChoice> choose_units(const UnitProblem& problem);

}  // namespace caravan
