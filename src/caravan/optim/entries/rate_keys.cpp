#include "caravan/optim/entries/rate_keys.h"

#include <algorithm>

namespace caravan {

SettingKey final_lr_fraction_key() {
  return {{"final_lr_fraction", OnResume::listed},
          "learning rate at the last step, as a fraction of lr",
          0.02,
          real_number({0, 1})};
}

double fallen(int64_t step, double falling, int64_t total) noexcept {
  const double along = 1 - static_cast<double>(total - 1 - step) / std::max(falling, 1.0);
  return std::clamp(along, 0.0, 1.0);
}

}  // namespace caravan
