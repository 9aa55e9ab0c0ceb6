#pragma once

#include <utility>

#include "caravan/base/error.h"

namespace caravan {

/// What a failure ends.
enum class FailureScope { communicator, world };

/// A CommError caused by the failure of another rank, so not the root cause.
class PeerFailure final : public CommError {
 public:
  PeerFailure(ErrorText text, FailureScope scope) : CommError(std::move(text)), scope_(scope) {}
  FailureScope scope() const noexcept { return scope_; }

 private:
  FailureScope scope_;
};

}  // namespace caravan
