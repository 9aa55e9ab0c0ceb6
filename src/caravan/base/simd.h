#pragma once

namespace caravan::simd {

/// The instruction sets the hot loops are compiled for, worst first. A binary runs on any x86-64 and chooses at run
/// time.
enum class Isa { baseline, avx2, avx512, avx512_bf16 };

/// The best one this machine has.
Isa isa() noexcept;

#if defined(__x86_64__)
template <class Kernel, class... Args>
[[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512"), gnu::flatten]] void run_avx512(
    Args... args) {
  Kernel::run(args...);
}
template <class Kernel, class... Args>
[[gnu::target("avx2"), gnu::flatten]] void run_avx2(Args... args) {
  Kernel::run(args...);
}
#endif

template <class Kernel, class... Args>
[[gnu::flatten]] void run_baseline(Args... args) {
  Kernel::run(args...);
}

/// Calls Kernel::run(args..), compiled once per instruction set. Kernel::run and all it calls are always_inline and
/// plain loops, in a file compiled with CARAVAN_VECTORISE (caravan/CMakeLists.txt): the compiler vectorises them
/// for each set, and as nothing is fused or reassociated every set gives the same bits. Functions with a target of
/// their own, chosen by a branch, rather than target_clones: the resolvers of those run before a sanitizer is ready.
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
