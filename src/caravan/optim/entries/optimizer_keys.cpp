#include "caravan/optim/entries/optimizer_keys.h"

namespace caravan {

SettingKey weight_decay_key() {
  return {{"weight_decay", OnResume::listed},
          "weight decay of matrices; norms and biases have none",
          0.1,
          real_number({0, 1e3})};
}

}  // namespace caravan
