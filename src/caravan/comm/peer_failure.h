#pragma once

#include "caravan/base/error.h"

namespace caravan {

/// A CommError whose cause is another rank's failure: the echo, not the first cause.
class PeerFailure final : public CommError {
 public:
  using CommError::CommError;
};

}  // namespace caravan
