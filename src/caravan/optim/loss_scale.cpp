#include "caravan/optim/loss_scale.h"

namespace caravan {
namespace {

constexpr double kFirst = 65536;
constexpr double kMost = 16777216;  // 2^24
constexpr int64_t kGrowthInterval = 2000;

}  // namespace

LossScale::LossScale(double fixed) : is_dynamic_(fixed == 0), state_{.value = fixed == 0 ? kFirst : fixed} {}

bool LossScale::update(bool is_finite) noexcept {
  has_backed_off_ = false;
  if (is_finite) {
    if (is_dynamic_ && ++state_.num_good >= kGrowthInterval && state_.value < kMost) {
      state_.value *= 2;
      state_.num_good = 0;
    }
    return true;
  }
  if (!is_dynamic_ || state_.value <= 1) return false;
  state_.value /= 2;
  state_.num_good = 0;
  ++state_.num_skipped;
  has_backed_off_ = true;
  return false;
}

}  // namespace caravan
