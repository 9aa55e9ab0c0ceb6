#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "caravan/base/simd.h"
#include "caravan/comm/types.h"

namespace caravan::shared {

/// out[i] = op over `sources`, in their order, of source[i]: bf16 and fp16 are accumulated in fp32 and rounded once,
/// integers wrap around, a NaN wins max and min. `out` may be one of the sources. At least one source; `op` takes
/// `dtype` (see reduces).
void reduce_in_order(ReduceOp op, Dtype dtype, std::span<const std::byte* const> sources, int64_t count,
                     std::byte* out);

/// The same result to every one of `outs`, each of which may be one of the sources.
void reduce_to_all(ReduceOp op, Dtype dtype, std::span<const std::byte* const> sources, int64_t count,
                   std::span<std::byte* const> outs);

/// The same by the loops of one instruction set, which the processor has: for tests. All give the same bits, but for
/// the payload of a NaN.
void reduce_with(simd::Isa isa, ReduceOp op, Dtype dtype, std::span<const std::byte* const> sources, int64_t count,
                 std::span<std::byte* const> outs);

}  // namespace caravan::shared
