#include "tests/comm/backends/hierarchical_ranks.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "caravan/comm/backends/hierarchical/hierarchical.h"
#include "tests/comm/world/world_threads.h"
#include "tests/ranks/process_ranks.h"

namespace caravan::testing {
namespace {

constexpr std::chrono::milliseconds kLeastTimeout{600};

std::string host_of(int rank, const std::vector<int>& hosts) {
  size_t host = 0;
  for (int end = hosts[0]; rank >= end; end += hosts[host]) ++host;
  return "number " + std::to_string(host);
}

int num_ranks(const std::vector<int>& hosts) { return std::accumulate(hosts.begin(), hosts.end(), 0); }

CommOptions patient(const CommOptions& options) {  // a call is several calls of two levels
  CommOptions patient = options;
  patient.timeout = std::max(options.timeout, kLeastTimeout);
  return patient;
}

}  // namespace

MakeWorld hierarchical_world(const std::vector<int>& hosts) {
  return [hosts](const RankInfo& info, const std::shared_ptr<Store>& store, const CommOptions& options) {
    return make_hierarchical_world(info, store, options, "gloo", host_of(info.rank, hosts));
  };
}

void run_hierarchical_threads(const std::vector<int>& hosts, const RankBody& body, const CommOptions& options) {
  run_thread_worlds(num_ranks(hosts), body, patient(options), hierarchical_world(hosts));
}

void run_hierarchical_ranks(const std::vector<int>& hosts, const RankBody& body, const CommOptions& options) {
  run_process_ranks(num_ranks(hosts), body, patient(options), hierarchical_world(hosts));
}

std::vector<RankEnd> run_hierarchical_processes(const std::vector<int>& hosts, const RankBody& body,
                                                const CommOptions& options) {
  return run_processes(num_ranks(hosts), body, options, hierarchical_world(hosts));
}

}  // namespace caravan::testing
