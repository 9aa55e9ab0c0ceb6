#pragma once

#include <span>
#include <string>

#include "caravan/comm/shared/rounds.h"

namespace caravan::shared {

struct SplitResult {
  int slot = -1;        ///< of the part's region; stays -1 for a part of one rank, or if none is free
  std::string overlap;  ///< in words, the same on every rank; "" if the parts are equal or disjoint
};

/// Communicator::split in two rounds: all ranks show the members of their parts, and each rank checks them all; then
/// the first member of each part tells the others which slot it has taken for the part's region.
class SplitTask final : public Rounds {
 public:
  /// `result` outlives the task.
  SplitTask(Seat& seat, Operation& operation, SplitResult& result) : Rounds(seat, operation), result_(result) {}

  Descriptor call() const override;

 private:
  void write(uint64_t round, int64_t step) override;
  Next read(uint64_t round, int64_t step) override;
  std::span<const int64_t> members() const noexcept { return operation().send_counts; }

  SplitResult& result_;
};

}  // namespace caravan::shared
