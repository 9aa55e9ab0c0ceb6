#include "apps/caravan/plan/plan_hardware.h"

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/text.h"

namespace caravan::app {

namespace {

/// What would have no effect.
void check_link(const PlanArguments& arguments, const Hardware& hardware) {
  if (arguments.link.empty() || hardware.levels.back().name == "cluster") return;
  const bool is_one = hardware.hosts.front().count == 1;
  throw UsageError(
      {"plan", "--link",
       is_one ? "there is one host, so that nothing goes to other hosts"
              : fmt::format("the {} of {} connects all hosts", hardware.levels.back().name, arguments.hardware),
       "", is_one ? "add --hosts, or leave --link out" : "leave it out"});
}

}  // namespace

Hardware hardware_of(const PlanArguments& arguments) {
  const std::vector<std::string> presets = hardware_presets();
  const std::string& name = arguments.hardware;
  if (name.empty()) {
    throw UsageError({"plan", "--hardware", "is not given", "",
                      "give a file (caravan doctor --hardware FILE measures this machine) or one of " + join(presets)});
  }
  const bool is_file = std::filesystem::exists(name) || name.ends_with(".toml");
  if (is_file) {
    if (arguments.per_host > 0 || arguments.hosts > 0 || !arguments.link.empty() || arguments.price > 0) {
      throw UsageError({"plan", "--per-host, --hosts, --link, --price", "belong to presets", "",
                        "change the hosts, levels and devices (price_per_hour) of " + name});
    }
    return read_hardware(name);
  }
  Hardware hardware = preset_hardware({.device = name,
                                       .per_host = std::max<int64_t>(arguments.per_host, 1),
                                       .hosts = std::max<int64_t>(arguments.hosts, 1),
                                       .link = arguments.link,
                                       .price_per_hour = arguments.price});
  check_link(arguments, hardware);
  return hardware;
}

}  // namespace caravan::app
