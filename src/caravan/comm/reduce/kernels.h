#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "caravan/comm/reduce/reduce.h"
#include "caravan/comm/types.h"

namespace caravan::shared {

/// The arguments of reduce_to_all.
struct Reduction {
  ReduceOp op;
  Dtype dtype;
  std::span<const std::byte* const> sources;
  int64_t count;
  std::span<std::byte* const> outs;
  Direction direction;
};

/// The loops of loops.h, compiled in one file per instruction set with its flags.
void reduce_plain(const Reduction& reduction);
void reduce_avx2(const Reduction& reduction);
void reduce_avx512(const Reduction& reduction);

}  // namespace caravan::shared
