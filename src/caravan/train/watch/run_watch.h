#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "caravan/mesh/mesh.h"
#include "caravan/optim/spike_guard.h"
#include "caravan/train/folder/metrics.h"
#include "caravan/train/watch/speed_watch.h"

namespace caravan {

/// Watches the numbers and the times of a run's steps.
///
/// A spike is a loss or gradient norm more than kDeviations standard deviations above those before (SpikeGuard). Speed
/// is compared every kSteps steps, for which the ranks exchange 24 bytes each (SpeedWatch).
class RunWatch {
  using Clock = std::chrono::steady_clock;

 public:
  static constexpr double kDeviations = 6;
  static constexpr int64_t kSteps = 10;

  /// `names_spikes`: false if the run itself skips and names them. The mesh outlives this.
  RunWatch(const Mesh& mesh, bool names_spikes);

  /// Takes in the steps in the train.log of a run that goes on, so that spikes are those of an uninterrupted run, as
  /// far as train.log_every has all steps in it. Rank 0 calls it.
  void resume(const std::filesystem::path& log);

  /// Adds its own lifetime to a time.
  class Timed {
   public:
    explicit Timed(double& sum_ms) : sum_ms_(sum_ms) {}
    ~Timed() { sum_ms_ += std::chrono::duration<double, std::milli>(Clock::now() - begin_).count(); }
    Timed(const Timed&) = delete;
    Timed& operator=(const Timed&) = delete;

   private:
    double& sum_ms_;
    Clock::time_point begin_ = Clock::now();
  };
  /// Keep the result while this rank waits for rows, for checkpoints, or does what is not part of steps.
  Timed data() { return Timed(times_.data_ms); }
  Timed saves() { return Timed(times_.save_ms); }
  Timed rest() { return Timed(rest_ms_); }

  /// Times of this rank from the end of a step to that of the next one, without evaluations and samples.
  struct StepTimes {
    double wall_ms = 0;
    double data_ms = 0;  ///< waiting for rows
    double save_ms = 0;  ///< waiting for checkpoints
  };
  /// Call it on every rank after a step, or after the steps between two boundaries, with their log line, which gets
  /// `spike` and `slowdown`. Rank 0's are those of the run.
  void stepped(StepMetrics& metrics);
  /// The same with given times.
  void stepped(StepMetrics& metrics, const StepTimes& times);

 private:
  void name_spike(StepMetrics& metrics);
  void add(StepMetrics& metrics, const StepTimes& times);
  std::vector<RankTimes> of_all_ranks(const RankTimes& own) const;

  const Mesh& mesh_;
  std::optional<SpikeGuard> spikes_{};
  SpeedWatch speed_{};
  std::optional<Clock::time_point> last_end_{};  ///< of a step
  StepTimes times_{};                            ///< since then
  double rest_ms_ = 0;
  StepTimes sums_{};  ///< of the window
  double comm_ms_ = 0;
  int64_t num_steps_ = 0;
};

}  // namespace caravan
