#pragma once

#include <exception>
#include <string_view>

#include "caravan/comm/call_errors.h"

namespace caravan {

/// What a communicator offers besides to one that is made of it and others: a level of it.
class Level {
 public:
  virtual ~Level() = default;
  /// Ends this communicator, what is outstanding and later calls, with `error`; ranks that share its memory are told.
  virtual void end(const std::exception_ptr& error) noexcept = 0;
  /// Ends the whole world that it is of, on all its ranks, with `fact` as it is.
  virtual void end_world(std::string_view fact) noexcept = 0;
  /// What is known of rank `rank` of it, which is late.
  virtual LateRank look_for(int rank) const = 0;
};

}  // namespace caravan
