#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace caravan {

/// The learning rate over a run of `total_steps`: rises linearly over `warmup_steps`, then by `kind`
///   constant              stays at lr
///   cosine                falls along half a cosine to `final_fraction` of lr at the last step
///   linear                falls linearly to `final_fraction` of lr
///   constant_then_decay   stays at lr, then falls linearly as above over the last `decay_fraction` of the run
///                         (Hägele et al., "Scaling laws and compute-optimal training beyond fixed training
///                         durations", 2024)
struct LearningRate {
  enum class Kind : uint8_t { constant, cosine, linear, constant_then_decay };

  Kind kind = Kind::cosine;
  double lr = 3e-4;
  int64_t warmup_steps = 0;
  int64_t total_steps = 0;
  double final_fraction = 0.1;
  double decay_fraction = 0.2;

  /// The learning rate of step `step`, counted from 0. A warm-up starts at lr / warmup_steps, so no step is wasted on
  /// 0.
  double at(int64_t step) const noexcept;

  static const std::vector<std::string>& names();
  /// Throws UsageError with the nearest valid name.
  static Kind parse(std::string_view name);
};

}  // namespace caravan
