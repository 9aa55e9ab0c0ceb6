#include "caravan/optim/entries/optimizer_keys.h"

namespace caravan {

Entry sgd_entry() {
  return {.family = "optimizer",
          .name = "sgd",
          .summary = "steps by the gradient, or its momentum",
          .keys = {weight_decay_key(),
                   average_key(),
                   {{"momentum", OnResume::listed}, "momentum", 0.0, real_number({0, 0.999999})}}};
}

}  // namespace caravan
