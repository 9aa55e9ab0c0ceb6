#pragma once

#include "caravan/comm/shared/task.h"

namespace caravan::shared {

/// The protocol of every collective. It goes in rounds; in round r each rank
///   1. writes its chunk (and in the first round of a call what it calls) into its buffer number r mod 2,
///   2. publishes `posted = r`,
///   3. waits until all ranks have posted r, reads their chunks in rank order,
///   4. publishes `read = r`.
/// Nobody can be more than one round ahead of another, so the buffer of round r may be written again in round r + 2 as
/// soon as everybody has read r; that wait is over before it begins unless a rank was interrupted in mid-reading.
/// Bytes and order depend on nothing but the arguments, so every rank gets the same result at every run.
class Rounds : public Task {
 public:
  using Task::Task;

  bool advance() final;
  std::vector<int> missing() const final;

 protected:
  /// Writes this rank's part of step `step` (0, 1, ..) of the operation, which is round `round` of the communicator.
  virtual void write(uint64_t round, int64_t step) = 0;
  /// Reads everybody's part. Returns true if it was the last step.
  virtual bool read(uint64_t round, int64_t step) = 0;

 private:
  bool everybody_has_read(uint64_t round) const;
  bool everybody_has_posted(uint64_t round) const;

  bool posted_ = false;  // this step's part
  uint64_t round_ = 0;
  int64_t step_ = 0;
};

}  // namespace caravan::shared
