#pragma once

#include <chrono>
#include <cstddef>

namespace caravan::app {

/// A line on standard error while a search runs, if that is a terminal. It disappears with this.
class PlanProgress {
 public:
  explicit PlanProgress(double seconds);
  ~PlanProgress();
  PlanProgress(const PlanProgress&) = delete;
  PlanProgress& operator=(const PlanProgress&) = delete;
  void show(size_t num_estimated);

 private:
  bool shows_;
  double seconds_;  ///< that the search may take
  std::chrono::steady_clock::time_point begin_, shown_;
};

}  // namespace caravan::app
