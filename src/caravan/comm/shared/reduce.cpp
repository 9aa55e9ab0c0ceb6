#include "caravan/comm/shared/reduce.h"

#include "caravan/comm/shared/reduce_kernels.h"

namespace caravan::shared {

std::string_view name(Isa isa) noexcept {
  switch (isa) {
    case Isa::plain: return "plain";
    case Isa::avx2: return "AVX2";
    case Isa::avx512: return "AVX-512";
  }
  return "";
}

Isa best_isa() noexcept {
#if defined(__x86_64__)
  static const Isa best = [] {
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")) {
      return Isa::avx512;
    }
    const bool has_half = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    return has_half ? Isa::avx2 : Isa::plain;
  }();
  return best;
#else
  return Isa::plain;
#endif
}

void reduce_with(Isa isa, ReduceOp op, Dtype dtype, std::span<const std::byte* const> sources, int64_t count,
                 std::span<std::byte* const> outs) {
  const Reduction reduction{op, dtype, sources, count, outs};
  switch (isa) {
#if defined(__x86_64__)
    case Isa::avx512: return reduce_avx512(reduction);
    case Isa::avx2: return reduce_avx2(reduction);
#else
    case Isa::avx512:
    case Isa::avx2:
#endif
    case Isa::plain: return reduce_plain(reduction);
  }
}

void reduce_to_all(ReduceOp op, Dtype dtype, std::span<const std::byte* const> sources, int64_t count,
                   std::span<std::byte* const> outs) {
  reduce_with(best_isa(), op, dtype, sources, count, outs);
}

void reduce_in_order(ReduceOp op, Dtype dtype, std::span<const std::byte* const> sources, int64_t count,
                     std::byte* out) {
  reduce_to_all(op, dtype, sources, count, {&out, 1});
}

}  // namespace caravan::shared
