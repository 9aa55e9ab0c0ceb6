#pragma once

namespace caravan {

/// Whether this process was told to stop: see Session::should_stop(). The first call takes over the signals.
bool stop_is_requested();

}  // namespace caravan
