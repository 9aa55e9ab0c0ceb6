#pragma once

#include <optional>
#include <string>
#include <vector>

#include "caravan/comm/measure/host.h"
#include "caravan/comm/measure/links.h"
#include "caravan/comm/measure/memory_rate.h"

namespace caravan::app {

/// What `doctor` found out about one back-end.
struct BackendFinding {
  std::string name;
  std::vector<std::string> errors{};  ///< of the ranks on which it failed, empty if it works
  std::vector<measure::Link> links{};

  bool works() const;
  /// Of the slowest link: microseconds of 8 bytes; GB/s of 4 MiB.
  double worst_latency_us() const;
  double worst_bandwidth_gb_s() const;
};

struct HostFinding {
  measure::HostFacts facts;
  std::vector<int> ranks{};
  std::vector<std::string> limits{};             ///< see limits_that_bite
  std::optional<measure::MemoryRates> memory{};  ///< of its ranks together
};

struct Diagnosis {
  int num_ranks = 0;
  std::vector<HostFinding> hosts{};
  std::vector<BackendFinding> backends{};
  std::optional<double> ping_ns{};  ///< ranks 0 and 1

  /// The back-end to use and why, in a sentence; the name is "" if none works.
  std::string backend() const;
  std::string reason() const;
  bool all_links_work() const;
};

std::string to_text(const Diagnosis& diagnosis);
std::string to_json(const Diagnosis& diagnosis);

}  // namespace caravan::app
