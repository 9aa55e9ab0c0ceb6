#pragma once

#include "caravan/base/system/blocked_signal.h"

namespace caravan {

/// While it lives, writing to a connection whose peer is gone is an error instead of a SIGPIPE that ends the process:
/// gloo writes without MSG_NOSIGNAL.
class NoBrokenPipeSignal : public BlockedSignal {
 public:
  NoBrokenPipeSignal() noexcept : BlockedSignal(SIGPIPE) {}
};

}  // namespace caravan
