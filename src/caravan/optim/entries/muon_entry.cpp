#include "caravan/optim/entries/optimizer_keys.h"

namespace caravan {

Entry muon_entry() {
  return {.family = "optimizer",
          .name = "muon",
          .summary = "steps matrices by their orthogonalized momentum, the rest by AdamW",
          .paper = "Jordan et al., \"Muon\", 2024; Liu et al., arXiv 2502.16982",
          .keys = {weight_decay_key(),
                   average_key(),
                   beta1_key(0.9),
                   beta2_key(0.98),
                   {{"epsilon", OnResume::listed}, "added to the denominator", 1e-8, real_number({1e-30, 1})},
                   {{"matrix_momentum", OnResume::listed},
                    "momentum of matrices, with Nesterov's step",
                    0.95,
                    real_number({0, 0.999999})},
                   {{"newton_schulz_steps", OnResume::listed},
                    "steps that orthogonalize the momentum of a matrix",
                    int64_t{5},
                    whole_number({1, 100})}},
          .traits =
              [](const Setting&) {
                return Traits{.has = {}, .needs = {{Trait::whole_matrices, "orthogonalizes whole matrices"}}};
              },
          .mistaken = {{"moonlight", "'moonlight' is \"muon\""},
                       {"muonclip", "'muonclip' is \"muon\" with clipped queries and keys, which are not there"}}};
}

}  // namespace caravan
