#include "caravan/optim/entries/optimizer_keys.h"

namespace caravan {

Entry lion_entry() {
  return {.family = "optimizer",
          .name = "lion",
          .summary = "steps by the sign of the gradient's momentum, with decoupled weight decay and one moment",
          .paper = "Chen et al., \"Symbolic discovery of optimization algorithms\", arXiv 2302.06675",
          .keys = {weight_decay_key(), average_key(), beta1_key(0.9), beta2_key(0.99)}};
}

}  // namespace caravan
