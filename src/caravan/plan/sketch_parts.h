#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>

#include "caravan/comm/types.h"
#include "caravan/plan/predict.h"
#include "caravan/recipe/recipe.h"
#include "caravan/schedule/pipeline_choice.h"

namespace caravan {

/// How one replica computes a micro-batch.
struct SplitChoice {
  int64_t tp = 1, cp = 1, ep = 1;
  int64_t micro_batch = 1;  ///< sequences of a data-parallel rank
  std::string recompute{};
  auto operator<=>(const SplitChoice&) const = default;
  int64_t ranks() const noexcept { return tp * cp * ep; }
};

/// What a rehearsal of few layers tells of each layer under a SplitChoice, for one micro-batch.
struct LayerPart {
  double forward = 0, backward = 0;  ///< seconds, with waits for other ranks
  double ends = 0;                   ///< seconds of embedding, head and loss
  double kept = 0;                   ///< bytes for backward
  double working = 0;                ///< bytes that a pass needs besides
  double parameters = 0;             ///< bytes of all parameters of the rehearsed model
};

/// A number of each of n ranks that shard something: whole + shards / n.
struct SharedNumber {
  double whole = 0, shards = 0;
  double of(double ranks) const { return whole + shards / ranks; }
  bool operator==(const SharedNumber&) const = default;
};

/// A number of each layer, and of what a model has besides.
template <class Number>
struct LayersAndEnds {
  Number layer{}, ends{};
  bool operator==(const LayersAndEnds&) const = default;
};

/// What a data-parallel technique sends, keeps and updates where nothing else splits the model.
struct StatePart {
  enum Phase { first_forward, forward, backward, last_backward, update, kNumPhases };
  using Sent = std::array<std::array<double, kNumVerbs>, kNumPhases>;
  LayersAndEnds<Sent> sent{};             ///< bytes by phase and verb, of one of two ranks
  LayersAndEnds<SharedNumber> bytes{};    ///< that rest on the device, and that units need for a while
  LayersAndEnds<SharedNumber> seconds{};  ///< of the optimizer
  bool operator==(const StatePart&) const = default;
};

/// The table of a schedule in numbers.
struct SchedulePart {
  double total = 1;      ///< of a step, in times that a rank's passes of one micro-batch take
  double in_flight = 1;  ///< micro-batches whose activations a rank keeps, on the rank with the most
};

/// Rehearsals of models with few layers. Nothing if the choice is not legal for this model.
std::optional<LayerPart> rehearse_layer(const Predictor& predictor, const Recipe& recipe, const SplitChoice& choice);
std::optional<StatePart> rehearse_states(const Predictor& predictor, const Recipe& recipe,
                                         const std::string& technique);
/// `pipeline`: degree and schedule. Of many micro-batches, by two tables of few. `forward`, `send`: shares of the time
/// of a micro-batch.
std::optional<SchedulePart> count_schedule(const PipelineChoice& pipeline, int64_t micro_batches, double forward,
                                           double send);

}  // namespace caravan
