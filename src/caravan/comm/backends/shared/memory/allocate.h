#pragma once

#include <exception>
#include <memory>

#include "caravan/comm/backends/shared/calls/rounds.h"

namespace caravan::shared {

/// Communicator::allocate_shared in one round: rank 0 allocates from its arena and publishes the offset; all ranks
/// publish the size.
class AllocateTask final : public Rounds {
 public:
  /// `memory` outlives the task and receives the buffer.
  AllocateTask(RankState& state, Operation& operation, std::shared_ptr<void>& memory)
      : Rounds(state, operation), memory_(memory) {}

  static Operation make_operation(size_t bytes);
  Descriptor call() const override;

 private:
  void write(uint64_t round, int64_t step) override;
  Next read(uint64_t round, int64_t step) override;
  size_t bytes() const noexcept { return static_cast<size_t>(operation().in.count); }

  std::shared_ptr<void>& memory_;
  std::exception_ptr error_;  ///< of rank 0
};

}  // namespace caravan::shared
