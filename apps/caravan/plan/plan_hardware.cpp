#include "apps/caravan/plan/plan_hardware.h"

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "caravan/base/error.h"
#include "caravan/base/text.h"

namespace caravan::app {

Hardware hardware_of(const PlanArguments& arguments) {
  const std::vector<std::string> presets = hardware_presets();
  const std::string& name = arguments.hardware;
  if (name.empty()) {
    throw UsageError({"plan", "--hardware", "is not given", "",
                      "give a file (caravan doctor --hardware FILE measures this machine) or one of " + join(presets)});
  }
  const bool is_file = std::filesystem::exists(name) || name.ends_with(".toml");
  if (is_file) {
    if (arguments.per_host > 0 || arguments.hosts > 0 || !arguments.link.empty()) {
      throw UsageError(
          {"plan", "--per-host, --hosts, --link", "belong to presets", "", "change the hosts and levels of " + name});
    }
    return read_hardware(name);
  }
  return preset_hardware({.device = name,
                          .per_host = std::max<int64_t>(arguments.per_host, 1),
                          .hosts = std::max<int64_t>(arguments.hosts, 1),
                          .link = arguments.link});
}

}  // namespace caravan::app
