#pragma once

#include <filesystem>
#include <limits>

#include "caravan/comm/communicator.h"
#include "caravan/train/folder/metrics.h"

namespace caravan {

/// The checkpoint of a run with the lowest validation loss so far (checkpoint.keep_best).
class BestCheckpoint {
 public:
  /// Of a run that goes on: rank 0 looks up which checkpoint is the best, and with which loss. Every rank calls it.
  BestCheckpoint(std::filesystem::path run, Communicator& world);

  /// Whether these metrics have a lower validation loss than all before: then the step is to be saved.
  bool improves(const StepMetrics& metrics);
  /// Rank 0: the checkpoint of `step`, which is saved, is the best one. See mark_best_checkpoint.
  void mark(int64_t step) const;

 private:
  std::filesystem::path run_;
  double loss_ = std::numeric_limits<double>::infinity();
};

}  // namespace caravan
