#pragma once

#include <filesystem>
#include <fstream>
#include <memory>

#include "caravan/report/event_file.h"
#include "caravan/report/run_log.h"

namespace caravan {

/// The lines of train.log in other formats for other programs: metrics.csv, and event files for TensorBoard in the
/// folder tensorboard. Both are rebuilt from train.log when a run continues, so they never contain more than it.
class MetricFiles {
 public:
  struct Options {
    bool csv = false;
    bool tensorboard = false;
    bool any() const noexcept { return csv || tensorboard; }
  };
  /// Created after the MetricsLog of this part of the run: writes the contents of train.log. Throws ResourceError.
  MetricFiles(const std::filesystem::path& run, const Options& options);
  void write(const MetricsLine& line);

 private:
  void write_csv(const MetricsLine& line);

  std::filesystem::path csv_path_;
  std::ofstream csv_;
  std::unique_ptr<EventFile> events_;  ///< null: none
};

}  // namespace caravan
