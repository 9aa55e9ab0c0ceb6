#pragma once

#include <filesystem>
#include <fstream>
#include <memory>

#include "caravan/report/event_file.h"
#include "caravan/report/run_log.h"

namespace caravan {

/// The lines of train.log in further forms, for other programs: metrics.csv, and event files for TensorBoard in the
/// folder tensorboard. Both are made again from train.log when a run goes on, so they never have what it has not.
class MetricFiles {
 public:
  struct Options {
    bool csv = false;
    bool tensorboard = false;
    bool any() const noexcept { return csv || tensorboard; }
  };
  /// After the MetricsLog of this part of the run is made: writes what train.log has. Throws ResourceError.
  MetricFiles(const std::filesystem::path& run, const Options& options);
  void write(const MetricsLine& line);

 private:
  void write_csv(const MetricsLine& line);

  std::filesystem::path csv_path_;
  std::ofstream csv_;
  std::unique_ptr<EventFile> events_;  ///< null: none
};

}  // namespace caravan
