#pragma once

#include "caravan/optim/optimizer.h"

namespace caravan {

struct LionOptions {
  double beta1 = 0.9;         ///< of the moment in the direction of a step
  double beta2 = 0.99;        ///< of the moment that the next step sees
  double weight_decay = 0.1;  ///< of parameters that decay
};

/// Chen et al., "Symbolic discovery of optimization algorithms", arXiv 2302.06675, algorithm 2:
/// w = w - lr (sign(beta1 m + (1 - beta1) g) + weight_decay w); m = beta2 m + (1 - beta2) g. Every step moves an
/// element by lr: a learning rate 3 to 10 times below AdamW's, with as much more decay. One sweep over values,
/// gradients and one moment, which also writes the copies that layers compute with.
class Lion final : public Optimizer {
 public:
  /// Throws UsageError for an option outside its range.
  explicit Lion(FlatState& state, const LionOptions& options = {});

 private:
  static bool update(const Part& part, const LionOptions& options, double lr, double gradient_scale);
};

}  // namespace caravan
