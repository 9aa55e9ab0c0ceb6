#pragma once

#include <optional>
#include <string>
#include <vector>

#include "caravan/comm/measure/host.h"
#include "caravan/comm/measure/links.h"
#include "caravan/comm/measure/memory_rate.h"
#include "caravan/memory/bandwidths.h"

namespace caravan::app {

/// The findings about one back-end.
struct BackendFinding {
  std::string name;
  std::vector<std::string> errors{};  ///< of the ranks on which it failed; empty if it works
  std::vector<measure::Link> links{};

  bool works() const;
  /// The worst over all links: microseconds for 8 bytes; GB/s for 4 MiB.
  double worst_latency_us() const;
  double worst_bandwidth_gb_s() const;
};

struct HostFinding {
  measure::HostFacts facts;
  std::vector<int> ranks{};
  std::vector<std::string> limits{};             ///< see limit_warnings
  std::optional<measure::MemoryRates> memory{};  ///< for all its ranks together
};

/// What offload has beyond the device, on the host of rank 0.
struct TierFindings {
  struct Disk {
    TierBandwidths::Disk rates{};
    std::vector<std::string> notes{};
    std::string error{};  ///< "": it is measured
  };
  double copy_bytes_per_second = 0;
  std::vector<Disk> disks{};
  std::string file{};        ///< that keeps the rates
  std::string file_error{};  ///< "": it does
};

struct Diagnosis {
  int num_ranks = 0;
  TierFindings tiers{};
  std::vector<HostFinding> hosts{};
  std::vector<BackendFinding> backends{};
  std::optional<double> ping_ns{};  ///< between the cores of ranks 0 and 1

  /// The recommended back-end, "" if none works, and the reason in a sentence.
  std::string backend() const;
  std::string reason() const;
  bool all_links_work() const;
};

std::string to_text(const TierFindings& tiers);
std::string to_text(const Diagnosis& diagnosis);
std::string to_json(const Diagnosis& diagnosis);

}  // namespace caravan::app
