#pragma once

#include <cstdint>

namespace caravan {

inline constexpr int64_t kBucketBytes = int64_t{25} << 20;      ///< of gradients in a collective, at least
inline constexpr int64_t kFirstBucketBytes = int64_t{1} << 20;  ///< and in the first one of a step

}  // namespace caravan
