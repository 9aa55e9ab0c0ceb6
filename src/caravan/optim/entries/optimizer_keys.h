#pragma once

#include "caravan/registry/registry.h"

namespace caravan {

// Keys that several optimizers read.

SettingKey weight_decay_key();
SettingKey beta1_key(double initial);
SettingKey beta2_key(double initial);
/// Of every optimizer of the library: Optimizer::keep_average.
SettingKey average_key();

}  // namespace caravan
