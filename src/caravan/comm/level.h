#pragma once

#include <chrono>
#include <functional>

#include "caravan/comm/backends/backend_communicator.h"
#include "caravan/comm/calls/call_errors.h"

namespace caravan {

/// The state of work that a waiting rank drives on the side: none outstanding, outstanding without progress, or moved.
enum class SideWork { none, blocked, moved };

/// A communicator that a hierarchical one can be built from.
class Level : public BackendCommunicator {
 public:
  /// How long a wait may sleep between two calls of the side work that is outstanding.
  static constexpr std::chrono::milliseconds kNap{1};

  /// Sleeps until `is_done()` or for `at_most`. What `is_done` reads changes only when an operation of this rank makes
  /// progress in this level's world. May wake up spuriously.
  virtual void pause(const std::function<bool()>& is_done, std::chrono::microseconds at_most) = 0;
  /// From now on every wait in this level's world also calls `work`; empty: nothing.
  virtual void set_side_work(std::function<SideWork()> work) = 0;
  /// What is known of rank `rank` of this communicator, which is late.
  virtual LateRank look_for(int rank) const = 0;

 protected:
  using BackendCommunicator::BackendCommunicator;
};

}  // namespace caravan
