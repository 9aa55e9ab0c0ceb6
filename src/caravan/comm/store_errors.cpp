#include "caravan/comm/store_errors.h"

#include <fmt/format.h>

namespace caravan {

CommError key_not_set(std::string_view key, std::chrono::milliseconds timeout, std::string where) {
  return CommError(
      {.op = "store",
       .subject = std::string(key),
       .fact = fmt::format("no rank set this key within {:.1f} s", static_cast<double>(timeout.count()) / 1e3),
       .where = std::move(where),
       .action = "look for the rank that should have set it, or raise the time-out"});
}

UsageError not_a_counter(std::string_view key, std::string_view holds, int64_t amount, std::string where) {
  return UsageError(
      {.op = "store",
       .subject = std::string(key),
       .fact = fmt::format("holds \"{}\", which is not a counter that {} can be added to", holds.substr(0, 80), amount),
       .where = std::move(where),
       .action = "use another key for the counter"});
}

}  // namespace caravan
