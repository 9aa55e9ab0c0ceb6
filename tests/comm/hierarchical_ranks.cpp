#include "tests/comm/hierarchical_ranks.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "caravan/comm/hierarchical.h"
#include "tests/ranks/process_ranks.h"

namespace caravan::testing {
namespace {

constexpr std::chrono::milliseconds kLeastTimeout{600};

std::string host_of(int rank, const std::vector<int>& hosts) {
  size_t host = 0;
  for (int end = hosts[0]; rank >= end; end += hosts[host]) ++host;
  return "number " + std::to_string(host);
}

MakeWorld world_of(const std::vector<int>& hosts) {
  return [hosts](const RankInfo& info, const std::shared_ptr<Store>& store, const CommOptions& options) {
    return make_hierarchical_world(info, store, options, "gloo", host_of(info.rank, hosts));
  };
}

int num_ranks(const std::vector<int>& hosts) { return std::accumulate(hosts.begin(), hosts.end(), 0); }

}  // namespace

void run_hierarchical_ranks(const std::vector<int>& hosts, const RankBody& body, const CommOptions& options) {
  CommOptions patient = options;  // a call here is several on two levels
  patient.timeout = std::max(options.timeout, kLeastTimeout);
  run_process_ranks(num_ranks(hosts), body, patient, world_of(hosts));
}

std::vector<RankEnd> run_hierarchical_processes(const std::vector<int>& hosts, const RankBody& body,
                                                const CommOptions& options) {
  return run_processes(num_ranks(hosts), body, options, world_of(hosts));
}

}  // namespace caravan::testing
