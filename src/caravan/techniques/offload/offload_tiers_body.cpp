#include "caravan/techniques/offload/offload.h"
#include "caravan/techniques/technique_body.h"

namespace caravan {
namespace {

Tier tier_of(const Setting& setting, const char* kind) {
  const std::string& tier = setting.text(kind);
  return tier == "host" ? Tier::host : tier == "disk" ? Tier::disk : Tier::device;
}

}  // namespace

void offload_tiers_body(Strategy& strategy, Module&, const Setting& setting) {
  OffloadOptions options{.optimizer = tier_of(setting, "optimizer"),
                         .parameters = tier_of(setting, "parameters"),
                         .gradients = tier_of(setting, "gradients"),
                         .activations = tier_of(setting, "activations"),
                         .prefetch = static_cast<int>(setting.whole("prefetch")),
                         .steps_early = strategy.steps_early};
  if (setting.flag("delayed_update")) options.delay_after = setting.whole("delay_after");
  for (const std::string& folder : setting.texts("disk_dirs")) options.disk_dirs.emplace_back(folder);
  add_offload(strategy, options);
}

}  // namespace caravan
