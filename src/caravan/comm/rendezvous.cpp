#include "caravan/comm/rendezvous.h"

#include <charconv>
#include <cstdlib>

#include <climits>
#include <fmt/format.h>

#include "caravan/base/error.h"

namespace caravan {
namespace {

UsageError wrong(const char* variable, std::string fact, std::string action) {
  return UsageError(
      {.op = "environment", .subject = variable, .fact = std::move(fact), .where = "", .action = std::move(action)});
}

std::string text_of(const char* variable) {
  const char* value = std::getenv(variable);
  if (value == nullptr || *value == '\0') {
    throw wrong(
        variable, "is not set, but RANK is",
        fmt::format("set {} as torchrun and `caravan train --ranks` do, or unset RANK for one process", variable));
  }
  return value;
}

int number_of(const char* variable, int least, int most) {
  const std::string text = text_of(variable);
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc::invalid_argument || (error == std::errc{} && end != text.data() + text.size())) {
    throw wrong(variable, fmt::format("\"{}\" is not a whole number", text),
                fmt::format("set it to {} .. {}", least, most));
  }
  if (error != std::errc{} || number < least || number > most) {
    throw wrong(variable, fmt::format("{} is out of range", text), fmt::format("set it to {} .. {}", least, most));
  }
  return number;
}

bool is_true(const char* variable) {
  const char* value = std::getenv(variable);
  const std::string text = value == nullptr ? "" : value;
  if (text == "1" || text == "true" || text == "True" || text == "TRUE") return true;
  if (text.empty() || text == "0" || text == "false" || text == "False" || text == "FALSE") return false;
  throw wrong(variable, fmt::format("\"{}\" is neither true nor false", text), "set it to 1 or 0");
}

}  // namespace

RankInfo RankInfo::from_environment() {
  RankInfo info;
  if (std::getenv("RANK") == nullptr) return info;
  info.world_size = number_of("WORLD_SIZE", 1, 1 << 24);
  info.rank = number_of("RANK", 0, info.world_size - 1);
  info.local_world_size = number_of("LOCAL_WORLD_SIZE", 1, info.world_size);
  info.local_rank = number_of("LOCAL_RANK", 0, info.local_world_size - 1);
  if (info.world_size == 1) return info;  // nobody to meet
  info.master_addr = text_of("MASTER_ADDR");
  info.master_port = number_of("MASTER_PORT", 1, 65535);
  info.agent_store = is_true("TORCHELASTIC_USE_AGENT_STORE");
  info.store_is_served = is_true("CARAVAN_STORE_SERVED");
  info.key = JobKey::from_environment(info.world_size);
  if (info.agent_store && info.store_is_served) {
    throw wrong("CARAVAN_STORE_SERVED",
                "is set together with TORCHELASTIC_USE_AGENT_STORE: two launchers claim this process",
                "start the ranks with one of them");
  }
  return info;
}

}  // namespace caravan
