#include "caravan/optim/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "caravan/base/error.h"
#include "caravan/base/text.h"

namespace caravan {

double LearningRate::at(int64_t step) const noexcept {
  if (step < warmup_steps) return lr * static_cast<double>(step + 1) / static_cast<double>(warmup_steps);
  // The number of steps over which it falls, and the progress through them: 0 just before the first, 1 at the last.
  const double falling = kind == Kind::constant_then_decay ? decay_fraction * static_cast<double>(total_steps)
                                                           : static_cast<double>(total_steps - warmup_steps);
  const double along = 1 - static_cast<double>(total_steps - 1 - step) / std::max(falling, 1.0);
  const double t = std::clamp(along, 0.0, 1.0);
  switch (kind) {
    case Kind::constant: return lr;
    case Kind::cosine: return lr * (final_fraction + (1 - final_fraction) * 0.5 * (1 + std::cos(std::numbers::pi * t)));
    case Kind::linear:
    case Kind::constant_then_decay: return lr * (1 - (1 - final_fraction) * t);
  }
  return lr;
}

const std::vector<std::string>& LearningRate::names() {
  static const std::vector<std::string> names{"constant", "cosine", "linear", "constant_then_decay"};
  return names;
}

LearningRate::Kind LearningRate::parse(std::string_view name) {
  const auto found = std::find(names().begin(), names().end(), name);
  if (found == names().end()) {
    throw UsageError({"recipe", "optimizer.schedule", "'" + std::string(name) + "' is not a schedule", "",
                      "use '" + nearest(name, names()) + "' (one of " + join(names()) + ")"});
  }
  return static_cast<Kind>(found - names().begin());
}

}  // namespace caravan
