#include "caravan/optim/entries/rate_keys.h"

namespace caravan {

Entry linear_entry() {
  return {.family = "learning_rate",
          .name = "linear",
          .summary = "falls linearly to final_lr_fraction of lr at the last step",
          .keys = {final_lr_fraction_key()},
          .rate = [](const Setting& setting, int64_t step, int64_t warmup, int64_t total) {
            const double t = fallen(step, static_cast<double>(total - warmup), total);
            return 1 - (1 - setting.real("final_lr_fraction")) * t;
          }};
}

}  // namespace caravan
