#pragma once

#include <string_view>

namespace caravan::simd {

/// The instruction sets that the hot loops are compiled for, in increasing order. One binary runs on any x86-64 and
/// chooses at run time. Other architectures have only `baseline`, which includes their own vector instructions.
enum class Isa { baseline, avx2, avx512, avx512_bf16 };

std::string_view name(Isa isa) noexcept;

/// The best instruction set that this processor supports.
Isa detected_isa() noexcept;

/// The instruction set requested by `caravan_simd`, the value of the environment variable CARAVAN_SIMD; the detected
/// one if it is empty. Throws UsageError for an unknown name and for one that the processor does not support.
Isa requested_isa(std::string_view caravan_simd, Isa detected);

/// The instruction set of the whole library: requested_isa of the environment variable CARAVAN_SIMD, read once.
Isa isa();

#if defined(__x86_64__)
template <class Kernel, class... Args>
[[gnu::target("fma,avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512"), gnu::flatten]] void run_avx512(
    Args... args) {
  Kernel::run(args...);
}
template <class Kernel, class... Args>
[[gnu::target("avx2,fma"), gnu::flatten]] void run_avx2(Args... args) {
  Kernel::run(args...);
}
#endif

template <class Kernel, class... Args>
[[gnu::flatten]] void run_baseline(Args... args) {
  Kernel::run(args...);
}

/// Calls Kernel::run(args..), compiled once per instruction set. Kernel::run and everything it calls are always_inline
/// plain loops in a file compiled with CARAVAN_VECTORISE (caravan/CMakeLists.txt): the compiler vectorises them for
/// each set. Nothing is fused or reassociated by the compiler, so every set gives the same bits. This uses functions
/// with a target attribute and a branch instead of target_clones, whose resolvers run before a sanitizer is
/// initialised.
template <class Kernel, class... Args>
void dispatch(Args... args) {
#if defined(__x86_64__)
  switch (isa()) {
    case Isa::avx512_bf16:
    case Isa::avx512: return run_avx512<Kernel>(args...);
    case Isa::avx2: return run_avx2<Kernel>(args...);
    case Isa::baseline: break;
  }
#endif
  run_baseline<Kernel>(args...);
}

}  // namespace caravan::simd
