#pragma once

#include <cstdint>

namespace caravan {

inline constexpr int64_t kIgnoredLabel = -100;  ///< the label of a token without a target

}  // namespace caravan
