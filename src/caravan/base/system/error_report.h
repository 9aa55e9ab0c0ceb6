#pragma once

#include <string>

namespace caravan {

/// The environment variable in which the launcher gives each rank the descriptor of a file for the error that ends it.
inline constexpr const char* kErrorFileVariable = "CARAVAN_ERROR_FD";

/// Reports the error that ends this process. main() calls it. Without a launcher it goes to stderr. Under the
/// launcher, which prints each error once, it goes to the rank's error file, and to the log of a rank other than 0.
void report_error(const std::string& text);

}  // namespace caravan
