#pragma once

#include <cstdint>
#include <ctime>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "caravan/plan/sketch_parts.h"
#include "caravan/plan/unit_choice.h"

namespace caravan {

/// What a search counts of a layout before it rehearses any: degrees, and the choices that move most time or memory.
struct LayoutSketch {
  SplitChoice split{};
  int64_t pp = 1;
  std::string schedule{};  ///< of the pipeline; "": no stages
  std::string technique{};
  double seconds = 0;  ///< of a step, roughly
  double bytes = 0;    ///< of the fullest rank, roughly
};

/// Rough times and memory of layouts, thousands a second, put together from parts that are rehearsed once each: a layer
/// under each split, the states of each data-parallel technique, the table of each schedule. They say which layouts
/// deserve an estimate (Predictor::estimate), and are shown to nobody.
class Sketcher {
 public:
  /// `recipe` is legal on the ranks of the predictor; both outlive this.
  Sketcher(const Predictor& predictor, const Recipe& recipe);

  /// All layouts whose parts are legal, in any order, until the processor time `end`. Sequences are split ever finer
  /// while what fits `room_bytes` (0: everything) gets faster.
  std::vector<LayoutSketch> all(double room_bytes, std::clock_t end);
  /// Whether `all` had to stop.
  bool is_complete() const noexcept { return is_complete_; }
  /// The layers of a sketch, the first with the embedding and the last with the head, each kept or recomputed (its two
  /// ways, in this order), on the devices of the stages, of whose memory they get a share. Nothing if its ranks have
  /// several stages, or parts are not legal.
  std::optional<UnitProblem> units_of(const LayoutSketch& sketch, double room_share);
  /// The recipe with the choices of a sketch; nothing if that is not legal.
  std::optional<Recipe> recipe_of(const LayoutSketch& sketch) const;

 private:
  /// What of_layer and of_ends are multiplied by: a split layer has fewer parameters.
  double share_of_split(const SplitChoice& split);
  const LayerPart* layer_of(const SplitChoice& choice);
  const StatePart* states_of(const std::string& technique);
  PipelineChoice pipeline_of(const LayoutSketch& sketch) const;
  const SchedulePart* schedule_part(const LayoutSketch& sketch, int64_t micro_batches, double forward, double send);
  double call_seconds(const StatePart::Sent& of_layer, StatePart::Phase phase, double times, int64_t ranks,
                      int64_t stride);
  double message_seconds(const LayoutSketch& sketch);
  /// Sets seconds and bytes; false if a part is not legal.
  bool count(LayoutSketch& sketch);
  void add_all(LayoutSketch sketch, std::vector<LayoutSketch>& to, std::clock_t end);

  const Predictor& predictor_;
  const Recipe& recipe_;
  int64_t num_ranks_;
  std::vector<std::string> techniques_, schedule_names_;  ///< that are exact
  bool is_complete_ = true;
  std::map<SplitChoice, std::optional<LayerPart>> layers_{};
  std::map<std::string, std::optional<StatePart>> states_{};
  std::map<std::tuple<std::string, int64_t, int64_t, int64_t, int64_t>, std::optional<SchedulePart>> schedules_{};
  std::map<std::tuple<Verb, int64_t, int64_t, int64_t>, double> calls_{};
};

}  // namespace caravan
