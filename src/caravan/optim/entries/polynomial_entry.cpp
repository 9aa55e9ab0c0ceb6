#include <cmath>

#include "caravan/optim/entries/rate_keys.h"

namespace caravan {

Entry polynomial_entry() {
  return {.family = "learning_rate",
          .name = "polynomial",
          .summary = "falls as a power of the steps that are left, to final_lr_fraction of lr at the last step",
          .keys = {final_lr_fraction_key(),
                   {{"power", OnResume::listed}, "power of the steps that are left", 1.0, real_number({0.01, 100})}},
          .rate = [](const Setting& setting, int64_t step, int64_t warmup, int64_t total) {
            const double t = fallen(step, static_cast<double>(total - warmup), total);
            const double last = setting.real("final_lr_fraction");
            return last + (1 - last) * std::pow(1 - t, setting.real("power"));
          }};
}

}  // namespace caravan
