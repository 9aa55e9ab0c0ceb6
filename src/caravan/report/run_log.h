#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace caravan {

/// The numbers in one line of train.log. For a list, such as the bubble of each rank: "bubble.0", "bubble.1".
struct MetricsLine {
  int64_t step = 0;
  double seconds = -1;  ///< since 1970; -1: the line has no time
  std::string host{};
  std::map<std::string, double> numbers{};
  std::vector<std::string> troubles{};  ///< of this step: StepMetrics::spike and slowdown
};

/// Throws what nlohmann::json throws, or DataError, for text that is not a line of a log.
MetricsLine parse_metrics_line(std::string_view json);

/// Points of one quantity.
struct Series {
  std::vector<double> x{};
  std::vector<double> y{};
};

/// train.log of a run; for a run in progress, what exists so far.
class RunLog {
 public:
  /// `run`: a run folder. Throws DataError, naming file and line, if it has no log, or a line that is not a log line.
  /// An incomplete last line is left out.
  static RunLog read(const std::filesystem::path& run);

  const std::filesystem::path& run() const noexcept { return run_; }
  std::string name() const;
  const std::vector<MetricsLine>& lines() const noexcept { return lines_; }
  /// The names of all numbers, in alphabetical order.
  std::vector<std::string> quantities() const;

  /// A quantity over "step", "tokens", or "time" (hours since the first line, pauses between parts of a run included);
  /// lines without it, or without tokens, are left out. Throws UsageError for another axis, for a quantity that no line
  /// has, naming the nearest, and for "time" if the lines have no time.
  Series series(const std::string& quantity, const std::string& axis = "step") const;
  /// The last line's value; throws as series().
  double last(const std::string& quantity) const { return series(quantity).y.back(); }
  bool has(const std::string& quantity) const;

 private:
  std::filesystem::path run_;
  std::vector<MetricsLine> lines_;
};

}  // namespace caravan
