#pragma once

#include "caravan/registry/registry.h"

namespace caravan {

/// A key that several optimizers read.
SettingKey weight_decay_key();

}  // namespace caravan
