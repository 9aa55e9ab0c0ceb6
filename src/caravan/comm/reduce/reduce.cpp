#include "caravan/comm/reduce/reduce.h"

#include "caravan/comm/reduce/kernels.h"

namespace caravan::shared {

void reduce_with(simd::Isa isa, ReduceOp op, Dtype dtype, std::span<const std::byte* const> sources, int64_t count,
                 std::span<std::byte* const> outs, Direction direction) {
  const Reduction reduction{op, dtype, sources, count, outs, direction};
  switch (isa) {
#if defined(__x86_64__)
    case simd::Isa::avx512_bf16:
    case simd::Isa::avx512: return reduce_avx512(reduction);
    case simd::Isa::avx2: return reduce_avx2(reduction);
#else
    case simd::Isa::avx512_bf16:
    case simd::Isa::avx512:
    case simd::Isa::avx2:
#endif
    case simd::Isa::baseline: return reduce_plain(reduction);
  }
}

void reduce_to_all(ReduceOp op, Dtype dtype, std::span<const std::byte* const> sources, int64_t count,
                   std::span<std::byte* const> outs, Direction direction) {
  reduce_with(simd::isa(), op, dtype, sources, count, outs, direction);
}

void reduce_in_order(ReduceOp op, Dtype dtype, std::span<const std::byte* const> sources, int64_t count,
                     std::byte* out) {
  reduce_to_all(op, dtype, sources, count, {&out, 1});
}

}  // namespace caravan::shared
