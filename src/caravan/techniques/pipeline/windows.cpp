#include "caravan/techniques/pipeline/windows.h"

#include "caravan/techniques/pipeline/schedule_keys.h"

namespace caravan {

std::vector<SettingKey> keys_of_windows() {
  std::vector<SettingKey> keys = schedule_keys();
  keys.push_back({{"drain", OnResume::listed},
                  "at most this many steps between log lines, for which all stages stop",
                  int64_t{50},
                  whole_number({1, 1 << 20})});
  return keys;
}

Traits traits_of_pipedream(const std::string& name) {
  return {.has = {Trait::splits_stages, Trait::bounded_lead, Trait::runs_processes, Trait::all_reduces,
                  Trait::rounds_reductions, Trait::threads_may_differ, Trait::whole_weights, Trait::many_reductions,
                  Trait::rehearses},
          .needs = {{Trait::whole_gradient, name + " steps independently, together with the replicas of the stage"},
                    {Trait::whole_weights, name + " keeps versions of whole weights on each rank"},
                    {Trait::many_reductions, name + " reduces gradients once for each micro-batch"}},
          .because = "the stages of " + name + " run whole layers and step independently"};
}

}  // namespace caravan
