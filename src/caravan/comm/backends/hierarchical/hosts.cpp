#include "caravan/comm/backends/hierarchical/hosts.h"

#include <map>

#include <fmt/format.h>

#include "caravan/comm/backends/shared/peers/announcement.h"

namespace caravan::hierarchical {

std::vector<int> find_hosts(const RankInfo& info, Store& store, const std::string& host,
                            std::chrono::milliseconds timeout) {
  shared::Announcement own = shared::Announcement::own("", 0);
  if (!host.empty()) {
    own.boot = "host " + host;
    own.network = "";
  }
  std::map<std::string, int> numbers;
  std::vector<int> hosts;
  for (const shared::Announcement& one : shared::exchange(own, info, store, timeout)) {
    const std::string key = fmt::format("{}\n{}\n{}", one.boot, one.network, one.user);
    hosts.push_back(numbers.try_emplace(key, static_cast<int>(numbers.size())).first->second);
  }
  return hosts;
}

}  // namespace caravan::hierarchical
