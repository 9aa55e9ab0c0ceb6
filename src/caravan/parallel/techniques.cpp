#include "caravan/parallel/techniques.h"

#include <fmt/format.h>

#include "caravan/base/text.h"

namespace caravan {

const std::vector<std::string>& data_parallel_techniques() {
  static const std::vector<std::string> names{"ddp", "zero1", "zero2", "zero3", "hsdp", "param_server", "replicas"};
  return names;
}

const std::vector<std::string>& server_modes() {
  static const std::vector<std::string> modes{"sync", "async", "bounded"};
  return modes;
}

std::string DataParallelChoice::wrong_with_shard(int64_t dp) const {
  if (!has_groups() || (shard > 1 && shard < dp && dp % shard == 0)) return "";
  if (shard == 0) return fmt::format("is needed by {}: how many of {} ranks share one set of shards", technique, dp);
  return fmt::format("{} cuts shards over groups of {} of {} data-parallel ranks", technique, shard, dp);
}

std::string DataParallelChoice::instead_of_shard(int64_t dp) const {
  std::vector<int64_t> valid;
  for (int64_t k = 2; k < dp; ++k) {
    if (dp % k == 0) valid.push_back(k);
  }
  return valid.empty() ? "no group smaller than all of them divides them: use \"zero3\"" : "use one of " + join(valid);
}

std::string DataParallelChoice::wrong_with_servers(int64_t dp) const {
  if (!has_servers() || (servers >= 0 && servers <= dp)) return "";
  return fmt::format("{} servers among {} data-parallel ranks", servers, dp);
}

std::string DataParallelChoice::wrong_with_backend(const std::string& backend) const {
  if (!is_replicated() || backend == "thread") return "";
  return fmt::format("{} runs its replicas as threads of one process, but the back-end is {}", technique, backend);
}

std::vector<std::string> techniques_where(bool (DataParallelChoice::*holds)() const) {
  std::vector<std::string> names;
  for (const std::string& name : data_parallel_techniques()) {
    if ((DataParallelChoice{.technique = name}.*holds)()) names.push_back(name);
  }
  return names;
}

}  // namespace caravan
