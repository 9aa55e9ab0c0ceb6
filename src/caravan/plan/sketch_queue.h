#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "caravan/plan/predict.h"
#include "caravan/plan/sketch.h"

namespace caravan {

/// Sketches in the order in which they deserve estimates. What an estimate shows corrects other sketches: their times
/// with the same schedule and sequences whole or split, their memory with the same technique and schedule, and until
/// there is one of these, with stages or without. A kind of layout that sketches flatter then costs few estimates.
class SketchQueue {
 public:
  /// Layouts that fit `room_bytes` (0: all do) come first, by time; then others by memory.
  SketchQueue(std::vector<LayoutSketch> sketches, double room_bytes);

  /// The best that was not taken yet: of all, or of those that `is_wanted` takes. Null: there is none.
  template <class IsWanted>
  const LayoutSketch* take(const IsWanted& is_wanted) {
    size_t best = sketches_.size();
    for (size_t i = 0; i < sketches_.size(); ++i) {
      if (is_taken_[i] || !is_wanted(sketches_[i])) continue;
      if (best == sketches_.size() || rank_of(i) < rank_of(best)) best = i;
    }
    if (best == sketches_.size()) return nullptr;
    is_taken_[best] = true;
    return &sketches_[best];
  }
  const LayoutSketch* take() {
    return take([](const LayoutSketch&) { return true; });
  }
  /// Corrects sketches like this one, which was taken and estimated.
  void learn(const LayoutSketch& sketch, const Prediction& estimate);
  /// With what was learned: seconds of a step, bytes of the fullest rank, whether it fits.
  double seconds(const LayoutSketch& sketch) const;
  double bytes(const LayoutSketch& sketch) const;
  bool fits(const LayoutSketch& sketch) const;
  double room_bytes() const noexcept { return room_bytes_; }
  const std::vector<LayoutSketch>& sketches() const noexcept { return sketches_; }

 private:
  /// (fits, and its seconds or bytes), with what was learned.
  std::pair<bool, double> rank_of(size_t i) const;

  std::vector<LayoutSketch> sketches_;
  double room_bytes_;
  /// Numbers of estimates in times of sketches.
  std::map<std::pair<std::string, bool>, double> seconds_{};
  std::map<std::pair<std::string, std::string>, double> bytes_{};
  std::vector<bool> is_taken_;
};

}  // namespace caravan
