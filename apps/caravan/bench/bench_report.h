#pragma once

#include <optional>
#include <string>

#include "caravan/comm/algorithms/tune.h"
#include "caravan/comm/measure/exercise.h"
#include "caravan/comm/measure/memory_rate.h"
#include "caravan/comm/measure/sampling.h"

namespace caravan::app {

/// One line of `bench comm`.
struct BenchRow {
  measure::BenchCase bench_case;
  std::string backend;
  int ranks = 0;
  measure::Timing timing{};
  std::optional<double> ping_ns{};
  std::optional<measure::MemoryRates> memory{};  ///< if all ranks are on one host
};

std::string json_line(const BenchRow& row);
/// A line of `bench comm --tune`.
std::string json_line(const algorithms::Measurement& measurement, const std::string& backend, int ranks);
std::string table_head(const BenchRow& row);
std::string table_line(const BenchRow& row);

}  // namespace caravan::app
