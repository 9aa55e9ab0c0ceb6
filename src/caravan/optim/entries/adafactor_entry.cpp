#include "caravan/optim/entries/optimizer_keys.h"

namespace caravan {

Entry adafactor_entry() {
  return {.family = "optimizer",
          .name = "adafactor",
          .summary = "steps by the gradient over the root of a second moment, of matrices kept as rows and columns",
          .paper = "Shazeer and Stern, \"Adafactor\", arXiv 1804.04235",
          .keys = {weight_decay_key(),
                   average_key(),
                   {{"update_momentum", OnResume::listed},
                    "momentum of updates; 0: none, and no memory for it",
                    0.0,
                    real_number({0, 0.999999})},
                   {{"decay_exponent", OnResume::listed},
                    "second moments of step t decay by 1 - t^-decay_exponent",
                    0.8,
                    real_number({0, 1})},
                   {{"epsilon1", OnResume::listed}, "added to squares of gradients", 1e-30, real_number({1e-36, 1})},
                   {{"clip_threshold", OnResume::listed},
                    "largest root mean square of an update, before the learning rate",
                    1.0,
                    real_number({1e-6, 1e6})},
                   {{"scale_by_parameter", OnResume::listed},
                    "multiply the learning rate by the root mean square of a parameter, at least 0.001",
                    false,
                    true_or_false()}},
          .traits = [](const Setting&) {
            return Traits{.has = {}, .needs = {{Trait::whole_matrices, "needs sums over whole rows and columns"}}};
          }};
}

}  // namespace caravan
