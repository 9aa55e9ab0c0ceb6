#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "caravan/comm/types.h"

namespace caravan::shared {

/// out[i] = op over `sources`, in their order, of source[i]: bf16 and fp16 are accumulated in fp32 and rounded once,
/// integers wrap around, a NaN wins max and min. `out` may be one of the sources. At least one source; `op` takes
/// `dtype` (see reduces).
void reduce_in_order(ReduceOp op, Dtype dtype, std::span<const std::byte* const> sources, int64_t count,
                     std::byte* out);

}  // namespace caravan::shared
