#pragma once

namespace caravan::app {

/// Called by main() first: opens /dev/null for each of stdin, stdout and stderr that is closed. Otherwise the next file
/// gets its number, and a checkpoint holds what was printed.
void open_standard_streams() noexcept;

}  // namespace caravan::app
