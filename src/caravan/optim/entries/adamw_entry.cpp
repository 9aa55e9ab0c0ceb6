#include "caravan/optim/entries/optimizer_keys.h"

namespace caravan {

Entry adamw_entry() {
  return {.family = "optimizer",
          .name = "adamw",
          .summary = "steps by the first moment over the root of the second, with decoupled weight decay",
          .paper = "Loshchilov and Hutter, \"Decoupled weight decay regularization\", ICLR 2019",
          .keys = {weight_decay_key(),
                   average_key(),
                   beta1_key(0.9),
                   beta2_key(0.98),
                   {{"epsilon", OnResume::listed}, "added to the denominator", 1e-8, real_number({1e-30, 1})}},
          .mistaken = {{"adam", "'adam' is \"adamw\" with weight_decay = 0"}}};
}

}  // namespace caravan
