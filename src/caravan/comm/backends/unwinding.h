#pragma once

#include <exception>

namespace caravan {

/// A member that tells a destructor whether its object is destroyed by an exception that unwinds the stack.
class Unwinding {
 public:
  /// True if an exception is in flight that was not when this object was made.
  explicit operator bool() const noexcept { return std::uncaught_exceptions() > at_construction_; }

 private:
  int at_construction_ = std::uncaught_exceptions();
};

}  // namespace caravan
