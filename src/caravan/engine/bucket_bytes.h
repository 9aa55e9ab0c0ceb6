#pragma once

#include <cstdint>

namespace caravan {

inline constexpr int64_t kBucketBytes = int64_t{25} << 20;      ///< minimum bytes of gradients in a collective
inline constexpr int64_t kFirstBucketBytes = int64_t{1} << 20;  ///< the same for the first collective of a step

}  // namespace caravan
