#include "apps/caravan/plan/plan_budget.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string_view>

#include <fmt/format.h>

#include "caravan/base/error.h"

namespace caravan::app {

std::optional<double> price_of_hour(const Hardware& hardware, int64_t num_ranks) {
  double sum = 0;
  for (const auto& [host, device, num_devices] : hardware.used_hosts(num_ranks)) {
    if (device->price_per_hour <= 0) return std::nullopt;
    sum += static_cast<double>(num_devices) * device->price_per_hour;
  }
  return sum;
}

double tokens_of_budget(const PlanArguments& arguments) {
  const std::string_view text = arguments.budget;
  if (text.empty()) return 0;
  double number = 0;
  const char* end = text.data() + text.size();
  const auto [stop, fault] = std::from_chars(text.data(), end, number);
  std::string_view unit(stop, static_cast<size_t>(end - stop));
  if (unit.starts_with(' ')) unit.remove_prefix(1);
  if (unit == "k") unit = "K";
  if (unit == "B") unit = "G";  // billions, as models are counted
  constexpr std::string_view kUnits = "KMGT";
  const size_t power = unit.size() == 1 ? kUnits.find(unit) + 1 : 0;  // 0: none, or unknown
  const bool is_known = unit.empty() || power > 0;
  if (fault != std::errc() || !is_known || !std::isfinite(number) || number <= 0) {
    throw UsageError({"plan", "--budget", fmt::format("'{}' is not a number of tokens", text), "",
                      "write one such as 300G (or 300B, 10^9 each), 1.4T, 500M"});
  }
  return number * std::pow(1000, static_cast<double>(power));
}

void check_budget(const PlanArguments& arguments, const Hardware& hardware) {
  if (arguments.budget.empty()) return;
  tokens_of_budget(arguments);
  const int64_t num_ranks = std::min<int64_t>(arguments.ranks.value_or(hardware.num_devices()), hardware.num_devices());
  if (price_of_hour(hardware, num_ranks)) return;
  const std::string& source = hardware.source;
  const bool is_preset = source == "preset";
  throw UsageError({"plan", "--budget", "what a device costs is unknown", "",
                    is_preset ? "give --price, what a device costs an hour; in a file it is price_per_hour of a device"
                              : fmt::format("add price_per_hour to the devices of {}; for a preset it is --price",
                                            arguments.hardware)});
}

}  // namespace caravan::app
