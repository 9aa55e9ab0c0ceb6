#include "caravan/plan/time_range.h"

#include <algorithm>

#include <fmt/format.h>

namespace caravan {

double time_error_of(const Hardware& hardware, int num_ranks) {
  double error = 0;
  for (const auto& [host, device, num_devices] : hardware.used_hosts(num_ranks)) {
    error = std::max(error, device->time_error);
  }
  return error;
}

TimeRange time_range(double predicted, double error) { return {predicted / (1 + error), predicted / (1 - error)}; }

std::string TimeRange::to_text() const {
  const double scale = low < 1 ? 1e3 : 1;
  const auto number = [&](double seconds) {
    const double count = scale * seconds;
    return count < 100 ? fmt::format("{:.3g}", count) : fmt::format("{:.0f}", count);
  };
  return fmt::format("{} to {} {}", number(low), number(high), low < 1 ? "ms" : "s");
}

}  // namespace caravan
