#include <algorithm>

#include <fmt/format.h>

#include "caravan/registry/registry.h"
#include "caravan/techniques/offload/kinds.h"

namespace caravan {
namespace {

SettingKey tier_key(const char* name, const std::string& help) {
  return {{name, OnResume::listed},
          help + ": \"none\" (the device), \"host\", \"disk\", or \"auto\": the least that fits device_budget",
          "none",
          one_of({"none", "host", "disk", "auto"})};
}

SettingKey with(SettingKey key, std::function<std::string(const Setting&)> idle) {
  key.idle = std::move(idle);
  return key;
}

std::string idle_without_offload(const Setting& setting) {
  return is_offload_used(setting) ? "" : "is used if something is offloaded only";
}

std::string idle_without_disk(const Setting& setting) {
  return uses_tier(setting, "disk") || uses_tier(setting, "auto") ? "" : "is used with \"disk\" or \"auto\" only";
}

std::string idle_without_delay(const Setting& setting) {
  return setting.flag("delayed_update") ? "" : "is used with delayed_update only";
}

std::optional<Misfit> misfit_of_tiers(const Setting& setting) {
  if (uses_tier(setting, "disk") && setting.texts("disk_dirs").empty()) {
    return Misfit{"offload.disk_dirs", "names no folder for what is offloaded to disk",
                  "set it to folders on local disks"};
  }
  if (setting.flag("delayed_update") && setting.text("optimizer") == "none") {
    return Misfit{"offload.delayed_update", "needs an optimizer that the host steps, but it rests on the device",
                  "use offload.optimizer = \"host\" or \"disk\", or offload.delayed_update = false"};
  }
  return std::nullopt;
}

}  // namespace

Entry offload_tiers_entry() {
  return {.family = "offload",
          .name = "offload_tiers",
          .summary = "what the device does not need rests in host memory or on disk",
          .paper = "Ren et al., arXiv 2101.06840; Rajbhandari et al., arXiv 2104.07857",
          .keys = {tier_key("optimizer", "where moments and fp32 parameters rest; the host steps them"),
                   tier_key("parameters", "where parameters rest while their unit does not run"),
                   tier_key("gradients", "where reduced gradients rest"),
                   tier_key("activations", "where what backward needs rests"),
                   {{"device_budget", OnResume::free, AcrossRanks::differ},
                    "the most that the device of a rank may hold, such as \"1.5G\"; \"\": no limit",
                    std::string(),
                    byte_count()},
                   with({{"disk_dirs", OnResume::free, AcrossRanks::differ},
                         "folders on local disks; data is striped over them",
                         std::vector<std::string>(),
                         list_of_texts()},
                        idle_without_disk),
                   with({{"prefetch", OnResume::free}, "units loaded ahead", int64_t{1}, whole_number({0, 16})},
                        idle_without_offload),
                   {{"delayed_update", OnResume::listed},
                    "the host's update for a step runs beside the next step, which does not see it yet",
                    false,
                    true_or_false()},
                   with({{"delay_after", OnResume::listed},
                         "updates of a run that are not delayed, while gradients change fast",
                         int64_t{40},
                         whole_number({0})},
                        idle_without_delay)},
          .traits =
              [](const Setting& setting) {
                Traits traits = usual_traits_of(setting);
                for (const char* kind : {"optimizer", "parameters", "gradients"}) {
                  if (setting.text(kind) == "none") continue;
                  traits.has.erase(Trait::whole_matrices);
                  traits.because = "what is offloaded is updated part by part (" + setting.full_name(kind) + ")";
                  traits.instead = {{kind, "none"}};
                }
                if (is_offload_used(setting)) {
                  traits.needs[Trait::offloads] = "its state cannot rest outside of the device (section offload)";
                }
                if (setting.flag("delayed_update")) {
                  traits.needs[Trait::whole_gradient] =
                      "it delays the update for the gradient of a whole step (offload.delayed_update)";
                }
                return traits;
              },
          .check = [](const Setting& setting, int64_t) { return misfit_of_tiers(setting); }};
}

}  // namespace caravan
