#pragma once

#include <cstdint>

#include "caravan/registry/setting.h"

namespace caravan {

/// The learning rate over a run of `total_steps`: rises linearly over `warmup_steps`, then follows a schedule of the
/// registry: {"learning_rate", "cosine", {{"final_lr_fraction", 0.1}}}.
struct LearningRate {
  Setting schedule{"learning_rate"};  ///< the default of the registry: linear, to 0.02 of lr
  double lr = 3e-4;
  int64_t warmup_steps = 0;
  int64_t total_steps = 0;

  /// The learning rate of step `step`, counted from 0. A warm-up starts at lr / warmup_steps, so no step is wasted on
  /// 0.
  double at(int64_t step) const;
};

}  // namespace caravan
