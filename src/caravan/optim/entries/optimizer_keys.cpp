#include "caravan/optim/entries/optimizer_keys.h"

namespace caravan {

SettingKey weight_decay_key() {
  return {{"weight_decay", OnResume::listed},
          "weight decay of matrices; norms and biases have none",
          0.1,
          real_number({0, 1e3})};
}

SettingKey beta1_key(double initial) {
  return {{"beta1", OnResume::listed}, "decay of the first moment", initial, real_number({0, 0.999999})};
}

SettingKey beta2_key(double initial) {
  return {{"beta2", OnResume::listed},
          "decay of the second moment; lion: of the moment that the next step sees",
          initial,
          real_number({0, 0.999999})};
}

SettingKey average_key() {
  return {{"average", OnResume::history},
          "decay of an average of the weights that is kept beside them (EMA), e.g. 0.999; 0: none",
          0.0,
          real_number({0, 0.9999999})};
}

}  // namespace caravan
