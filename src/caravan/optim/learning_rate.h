#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace caravan {

/// How the learning rate goes over a run of `total_steps`: up linearly over `warmup_steps`, then by `kind`
///   constant              stays
///   cosine                falls along half a cosine to `final_fraction` of lr at the last step
///   linear                falls linearly to it
///   constant_then_decay   stays, then falls linearly to it over the last `decay_fraction` of the run
///                         (Hägele et al., "Scaling laws and compute-optimal training beyond fixed training durations",
///                         2024)
struct LearningRate {
  enum class Kind : uint8_t { constant, cosine, linear, constant_then_decay };

  Kind kind = Kind::cosine;
  double lr = 3e-4;
  int64_t warmup_steps = 0;
  int64_t total_steps = 0;
  double final_fraction = 0.1;
  double decay_fraction = 0.2;

  /// Of step `step`, counted from 0. The first step of a warm-up has lr / warmup_steps, so no step is wasted on 0.
  double at(int64_t step) const noexcept;

  static const std::vector<std::string>& names();
  /// Throws UsageError naming the nearest kind.
  static Kind parse(std::string_view name);
};

}  // namespace caravan
