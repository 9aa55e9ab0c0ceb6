#include "caravan/plan/time_range.h"

#include <algorithm>

#include <fmt/format.h>

namespace caravan {

double time_error_of(const Hardware& hardware, int num_ranks) {
  double error = 0;
  int64_t left = num_ranks;
  for (const HostKind& host : hardware.hosts) {
    if (left <= 0) break;
    error = std::max(error, hardware.device_of(num_ranks - left).time_error);
    left -= host.count * host.devices;
  }
  return error;
}

TimeRange time_range(double predicted, double error) { return {predicted / (1 + error), predicted / (1 - error)}; }

std::string TimeRange::to_text() const {
  const double scale = high < 1 ? 1e3 : 1;
  return fmt::format("{:.3g} to {:.3g} {}", scale * low, scale * high, high < 1 ? "ms" : "s");
}

}  // namespace caravan
