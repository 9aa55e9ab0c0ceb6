#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <string_view>

#include "caravan/comm/call_errors.h"

namespace caravan {

/// What a rank has to do besides what it waits for.
enum class Besides { nothing, waits, moved };

/// What a communicator offers besides to one that is made of it and others: a level of it.
class Level {
 public:
  static constexpr std::chrono::milliseconds kNap{1};  ///< without a look at what there is besides

  virtual ~Level() = default;
  /// Ends this communicator, what is outstanding and later calls, with `error`; ranks that share its memory are told.
  virtual void end(const std::exception_ptr& error) noexcept = 0;
  /// Ends the whole world that it is of, on all its ranks, with `fact` as it is.
  virtual void end_world(std::string_view fact) noexcept = 0;
  /// Sleeps until `is_done()`, which may change when something of this rank moves in the world of this level, or
  /// `at_most`; or wakes up for nothing.
  virtual void pause(const std::function<bool()>& is_done, std::chrono::microseconds at_most) = 0;
  /// While a call waits in the world of this level, it does `work`, too.
  virtual void drive_also(std::function<Besides()> work) = 0;
  /// What is known of rank `rank` of it, which is late.
  virtual LateRank look_for(int rank) const = 0;
};

}  // namespace caravan
