#include "caravan/optim/entries/rate_keys.h"

namespace caravan {

Entry constant_then_decay_entry() {
  SettingKey decay{{"decay_fraction", OnResume::listed},
                   "fraction of the run in which the learning rate falls",
                   0.2,
                   real_number({0, 1})};
  return {.family = "learning_rate",
          .name = "constant_then_decay",
          .summary = "stays at lr, then falls linearly over the last decay_fraction of the run",
          .paper = "Hägele et al., \"Scaling laws beyond fixed training durations\", arXiv 2405.18392",
          .keys = {final_lr_fraction_key(), decay},
          .rate =
              [](const Setting& setting, int64_t step, int64_t, int64_t total) {
                const double t = fallen(step, setting.real("decay_fraction") * static_cast<double>(total), total);
                return 1 - (1 - setting.real("final_lr_fraction")) * t;
              },
          .mistaken = {{"wsd", "'wsd' is \"constant_then_decay\""}}};
}

}  // namespace caravan
