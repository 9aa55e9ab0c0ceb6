#pragma once

namespace caravan::app {

/// Called first by main(): opens /dev/null for each of stdin, stdout and stderr that is closed. Otherwise the next file
/// to be opened gets that descriptor, and output would go into a checkpoint.
void open_standard_streams() noexcept;

}  // namespace caravan::app
