#include "caravan/comm/store/secret/job_key.h"

#include <cstdlib>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/comm/store/secret/handshake.h"
#include "caravan/comm/store/secret/secret.h"

namespace caravan {
namespace {

constexpr size_t kLeastSecretBytes = 16;
constexpr size_t kMostSecretBytes = 1024;

std::string value_of(const char* variable) {
  const char* value = std::getenv(variable);
  return value == nullptr ? "" : value;
}

void require(const char* variable, bool fits, std::string fact, std::string action) {
  if (fits) return;
  throw UsageError(
      {.op = "environment", .subject = variable, .fact = std::move(fact), .where = "", .action = std::move(action)});
}

}  // namespace

JobKey JobKey::from_environment(int world_size) {
  JobKey key{value_of("CARAVAN_JOB_ID"), value_of("CARAVAN_SECRET"), world_size};
  require("CARAVAN_JOB_ID", key.id.size() <= store_protocol::kMaxJobIdBytes,
          fmt::format("has {} bytes, more than {}", key.id.size(), store_protocol::kMaxJobIdBytes),
          "choose a shorter name for the job");
  require("CARAVAN_SECRET",
          key.secret.empty() || (key.secret.size() >= kLeastSecretBytes && key.secret.size() <= kMostSecretBytes),
          fmt::format("has {} bytes; {} to {} are needed", key.secret.size(), kLeastSecretBytes, kMostSecretBytes),
          "make one with `openssl rand -hex 32`, the same for every launcher of the job");
  if (key.id.empty()) key.id = value_of("TORCHELASTIC_RUN_ID").substr(0, store_protocol::kMaxJobIdBytes);
  return key;
}

JobKey JobKey::for_launch(int world_size) {
  JobKey key = from_environment(world_size);
  if (key.id.empty()) key.id = store_secret::random_hex(4);
  if (key.secret.empty()) key.secret = store_secret::random_hex(32);
  return key;
}

}  // namespace caravan
