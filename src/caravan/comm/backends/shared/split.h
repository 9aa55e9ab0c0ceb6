#pragma once

#include <span>
#include <string>

#include "caravan/comm/backends/shared/calls/rounds.h"

namespace caravan::shared {

struct SplitResult {
  int slot = -1;        ///< of the new communicator's region; -1 if it has one rank, or no slot is free
  std::string overlap;  ///< which member lists overlap, the same text on every rank; "" if none do
};

/// Communicator::split in two rounds: all ranks publish the members of their new communicators, and each rank checks
/// all lists; then the first member of each publishes the slot that it has taken for the region.
class SplitTask final : public Rounds {
 public:
  /// `result` outlives the task.
  SplitTask(RankState& state, Operation& operation, SplitResult& result) : Rounds(state, operation), result_(result) {}

  Descriptor call() const override;

 private:
  void write(uint64_t round, int64_t step) override;
  Next read(uint64_t round, int64_t step) override;
  std::span<const int64_t> members() const noexcept { return operation().send_counts; }

  SplitResult& result_;
};

}  // namespace caravan::shared
