#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

namespace caravan {

/// Where the time of a rank's step goes, in milliseconds; the rest of the step it waits for its peers.
struct RankTimes {
  double busy_ms = 0;  ///< computing
  double data_ms = 0;  ///< waiting for its rows
  double save_ms = 0;  ///< waiting for checkpoints
};

/// Tells when steps have become much slower than before, and what the additional time is spent on. It compares windows
/// of steps: their times with the medians of the windows before.
class SpeedWatch {
 public:
  static constexpr size_t kWindows = 20;   ///< to compare with
  static constexpr size_t kLeast = 3;      ///< before them everything counts as usual
  static constexpr double kSlower = 1.5;   ///< times the usual time
  static constexpr double kLeast_ms = 1;   ///< a step that is slower by less is not noticed
  static constexpr size_t kNewLevel = 10;  ///< slow windows in a row, after which that is usual

  /// The mean times of the steps of a window, with what they waited for. Returns the news: that steps have become slow,
  /// with the cause, or that they are as fast as before; "": none.
  std::string add(double step_ms, const std::vector<RankTimes>& ranks);

 private:
  struct Window {
    double step_ms = 0;
    std::vector<RankTimes> ranks{};
  };
  /// The medians of windows_.
  Window usual() const;
  static std::string cause_of(const Window& now, const Window& usual);

  std::deque<Window> windows_{};  ///< of usual speed
  size_t num_slow_ = 0;           ///< in a row
};

}  // namespace caravan
