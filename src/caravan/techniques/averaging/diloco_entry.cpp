#include "caravan/techniques/data/data_keys.h"

namespace caravan {

Entry diloco_entry() {
  SettingKey local_steps{{"local_steps", OnResume::listed},
                         "steps that each replica takes before the parameters are averaged",
                         int64_t{20},
                         whole_number({1, 1 << 20})};
  SettingKey outer_lr{{"outer_lr", OnResume::listed},
                      "learning rate of the outer step; 1 with outer_momentum 0: the mean of the replicas' parameters",
                      0.7,
                      real_number({0, 10})};
  SettingKey outer_momentum{
      {"outer_momentum", OnResume::listed}, "Nesterov momentum of the outer step", 0.9, real_number({0, 0.999})};
  return {.family = "data_parallel",
          .name = "diloco",
          .summary = "replicas step independently and average their parameters every few steps (local SGD)",
          .paper = "Douillard et al., arXiv 2311.08105",
          .keys = {bucket_bytes_key(), local_steps, outer_lr, outer_momentum},
          .traits =
              [](const Setting& setting) {
                Traits traits{.has = usual_traits(),
                              .because = "replicas of " + setting.name() + " have different gradients"};
                for (const Trait lacking : {Trait::whole_gradient, Trait::scales_loss, Trait::rounds_reductions,
                                            Trait::all_reduces, Trait::offloads}) {
                  traits.has.erase(lacking);
                }
                return traits;
              },
          .mistaken = {{"local_sgd", "'local_sgd' is \"diloco\" with outer_lr = 1 and outer_momentum = 0"},
                       {"localsgd", "'localsgd' is \"diloco\" with outer_lr = 1 and outer_momentum = 0"}}};
}

}  // namespace caravan
