#pragma once

#include <filesystem>
#include <limits>

#include "caravan/comm/communicator.h"
#include "caravan/train/folder/metrics.h"

namespace caravan {

/// The checkpoint of a run with the lowest validation loss so far (checkpoint.keep_best).
class BestCheckpoint {
 public:
  /// For a continued run, rank 0 looks up the best checkpoint and its loss. Every rank calls it.
  BestCheckpoint(std::filesystem::path run, Communicator& world);

  /// Whether these metrics have the lowest validation loss so far, so that the step must be saved.
  bool improves(const StepMetrics& metrics);
  /// Rank 0: marks the saved checkpoint of `step` as the best one. See mark_best_checkpoint.
  void mark(int64_t step) const;

 private:
  std::filesystem::path run_;
  double loss_ = std::numeric_limits<double>::infinity();
};

}  // namespace caravan
