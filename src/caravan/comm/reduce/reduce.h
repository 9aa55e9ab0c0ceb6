#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "caravan/base/numeric/simd.h"
#include "caravan/comm/types.h"

namespace caravan::shared {

/// out[i] = sources[0][i] op sources[1][i] op .., in this order. bf16 and fp16 are accumulated in fp32, denormals
/// included, and rounded once to nearest even; integers wrap around; max and min return NaN if there is one. `out` may
/// be one of the sources. At least one source; `op` must support `dtype` (see reduces).
void reduce_in_order(ReduceOp op, Dtype dtype, std::span<const std::byte* const> sources, int64_t count,
                     std::byte* out);

/// The order in which a reduction of two sources into two results visits the elements; the result is the same. The
/// processor prefetches what lies ahead, even if it belongs to another rank, which then has to fetch it back.
enum class Direction : uint8_t { ascending, descending };

/// Writes the same result to each of `outs`, which may be sources.
void reduce_to_all(ReduceOp op, Dtype dtype, std::span<const std::byte* const> sources, int64_t count,
                   std::span<std::byte* const> outs, Direction direction = Direction::ascending);

/// Uses the loops of one instruction set, which the processor must support. For tests. All give the same bits, except
/// that a NaN may have another payload.
void reduce_with(simd::Isa isa, ReduceOp op, Dtype dtype, std::span<const std::byte* const> sources, int64_t count,
                 std::span<std::byte* const> outs, Direction direction = Direction::ascending);

}  // namespace caravan::shared
