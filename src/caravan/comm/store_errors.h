#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "caravan/base/error.h"

namespace caravan {

/// What every kind of store says of the same mistake. `where` names the store.
CommError key_not_set(std::string_view key, std::chrono::milliseconds timeout, std::string where);
UsageError not_a_counter(std::string_view key, std::string_view holds, int64_t amount, std::string where);

}  // namespace caravan
