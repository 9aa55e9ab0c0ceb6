#pragma once

#include <cstdint>

#include "caravan/registry/registry.h"

namespace caravan {

/// The key of decreasing schedules: the learning rate at the last step.
SettingKey final_lr_fraction_key();

/// The decrease of a learning rate at `step`, if it falls over the last `falling` of `total` steps: 0 just before the
/// first of them, 1 at the last.
double fallen(int64_t step, double falling, int64_t total) noexcept;

}  // namespace caravan
