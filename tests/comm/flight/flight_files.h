#pragma once

#include <string>
#include <vector>

#include "caravan/comm/flight/report.h"

namespace caravan::testing {

/// Records written by hand: a job of several ranks, operation by operation. Times are in milliseconds of a clock that
/// all its ranks share; every record is written at 10,000.
class FlightJob {
 public:
  struct Group {
    uint64_t identity;
    std::string name;
    std::vector<int> ranks;
  };
  struct Op {
    Verb verb = Verb::all_reduce;
    int64_t count = 10;
    std::string what = "gradient";
    uint32_t line = 12;
    FlightState state = FlightState::done;
    int begin_ms = 0;
    int root = -1;
    Dtype dtype = Dtype::fp32;
  };

  explicit FlightJob(int world_size, const std::string& job = "0123456789abcdef");

  Group world() const;
  /// `rank` calls `op` as number `sequence` of its kind on `group`.
  void add(int rank, const Group& group, uint64_t sequence, const Op& op);
  /// The same for all ranks of the group, with the same result.
  void add_all(const Group& group, uint64_t sequence, const Op& op);

  std::vector<FlightReport> reports;  ///< by rank
};

}  // namespace caravan::testing
