#include "caravan/plan/sketch_queue.h"

#include <utility>

namespace caravan {
namespace {

template <class Key>
double factor_of(const std::map<Key, double>& factors, const Key& key) {
  const auto found = factors.find(key);
  return found == factors.end() ? 1 : found->second;
}

}  // namespace

SketchQueue::SketchQueue(std::vector<LayoutSketch> sketches, double room_bytes)
    : sketches_(std::move(sketches)), room_bytes_(room_bytes), is_taken_(sketches_.size(), false) {}

double SketchQueue::seconds(const LayoutSketch& sketch) const {
  return sketch.seconds * factor_of(seconds_, {sketch.schedule, sketch.split.cp > 1});
}

double SketchQueue::bytes(const LayoutSketch& sketch) const {
  const auto found = bytes_.find({sketch.technique, sketch.schedule});
  if (found != bytes_.end()) return sketch.bytes * found->second;
  // The least of others with stages, or of others without: sketches flatter them for the same reasons.
  double least = 0;
  for (const auto& [key, factor] : bytes_) {
    const bool is_alike = key.second.empty() == sketch.schedule.empty();
    if (is_alike && (least == 0 || factor < least)) least = factor;
  }
  return sketch.bytes * (least > 0 ? least : 1);
}

bool SketchQueue::fits(const LayoutSketch& sketch) const { return room_bytes_ <= 0 || bytes(sketch) <= room_bytes_; }

std::pair<bool, double> SketchQueue::rank_of(size_t i) const {
  const LayoutSketch& sketch = sketches_[i];
  return fits(sketch) ? std::pair(false, seconds(sketch)) : std::pair(true, bytes(sketch));
}

void SketchQueue::learn(const LayoutSketch& sketch, const Prediction& estimate) {
  seconds_[{sketch.schedule, sketch.split.cp > 1}] = estimate.seconds / sketch.seconds;
  bytes_[{sketch.technique, sketch.schedule}] = static_cast<double>(estimate.memory.total()) / sketch.bytes;
}

}  // namespace caravan
