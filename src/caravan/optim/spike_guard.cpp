#include "caravan/optim/spike_guard.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace caravan {

std::string SpikeGuard::far_above(const char* name, double value, const std::array<float, kWindow>& before) const {
  constexpr double kLeastDeviation = 1e-6;  // of the mean: that of a constant is rounding
  const auto count = static_cast<size_t>(state_.count);
  double sum = 0;
  for (size_t i = 0; i < count; ++i) sum += before[i];
  const double mean = sum / static_cast<double>(count);
  double squares = 0;
  for (size_t i = 0; i < count; ++i) squares += (before[i] - mean) * (before[i] - mean);
  const double deviation = std::max(std::sqrt(squares / static_cast<double>(count)), kLeastDeviation * std::abs(mean));
  if (value <= mean + deviations_ * deviation) return "";
  return fmt::format("{} {:.4g} is {:.3g} standard deviations above the mean {:.4g} of {} steps", name, value,
                     (value - mean) / deviation, mean, count);
}

std::string SpikeGuard::why_skipped(double loss, double grad_norm) {
  std::string why;
  if (state_.count >= kLeast) why = far_above("loss", loss, state_.losses);
  if (state_.count >= kLeast && why.empty()) why = far_above("gradient norm", grad_norm, state_.norms);
  if (!why.empty()) {
    ++state_.num_skipped;
    if (++state_.num_in_a_row < kMostInARow) return why;
    state_.count = state_.next = state_.num_in_a_row = 0;
    return why +
           fmt::format("; it is the last of {} in a row, after which the steps before are forgotten", kMostInARow);
  }
  state_.num_in_a_row = 0;
  const auto at = static_cast<size_t>(state_.next);
  state_.losses[at] = static_cast<float>(loss);
  state_.norms[at] = static_cast<float>(grad_norm);
  state_.next = (state_.next + 1) % static_cast<int64_t>(kWindow);
  state_.count = std::min(state_.count + 1, static_cast<int64_t>(kWindow));
  return why;
}

}  // namespace caravan
