#include <cmath>
#include <numbers>

#include "caravan/optim/entries/rate_keys.h"

namespace caravan {

Entry cosine_entry() {
  return {.family = "learning_rate",
          .name = "cosine",
          .summary = "falls along half a cosine to final_lr_fraction of lr at the last step",
          .paper = "Loshchilov and Hutter, arXiv 1608.03983",
          .keys = {final_lr_fraction_key()},
          .rate = [](const Setting& setting, int64_t step, int64_t warmup, int64_t total) {
            const double t = fallen(step, static_cast<double>(total - warmup), total);
            const double last = setting.real("final_lr_fraction");
            return last + (1 - last) * 0.5 * (1 + std::cos(std::numbers::pi * t));
          }};
}

}  // namespace caravan
