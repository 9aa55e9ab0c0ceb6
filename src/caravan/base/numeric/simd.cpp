#include "caravan/base/numeric/simd.h"

#include <array>
#include <cstdlib>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/text.h"

namespace caravan::simd {
namespace {

constexpr std::array<std::string_view, 4> kNames{"baseline", "avx2", "avx512", "avx512_bf16"};

}  // namespace

std::string_view name(Isa isa) noexcept { return kNames[static_cast<size_t>(isa)]; }

Isa detected_isa() noexcept {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl")) {
    return __builtin_cpu_supports("avx512bf16") ? Isa::avx512_bf16 : Isa::avx512;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return Isa::avx2;
#endif
  return Isa::baseline;
}

Isa requested_isa(std::string_view caravan_simd, Isa detected) {
  if (caravan_simd.empty()) return detected;
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (caravan_simd != kNames[i]) continue;
    const Isa isa = static_cast<Isa>(i);
    if (isa <= detected) return isa;
    throw UsageError({.op = "CARAVAN_SIMD",
                      .fact = fmt::format("this processor does not support {}; the best it supports is {}",
                                          caravan_simd, name(detected)),
                      .action = fmt::format("set CARAVAN_SIMD={} or unset it", name(detected))});
  }
  const std::vector<std::string> names(kNames.begin(), kNames.end());
  throw UsageError({.op = "CARAVAN_SIMD",
                    .fact = fmt::format("unknown instruction set '{}'; known are {}", caravan_simd, join(names, ", ")),
                    .action = fmt::format("set CARAVAN_SIMD={} or unset it", nearest(caravan_simd, names))});
}

Isa isa() {
  static const Isa chosen = [] {
    const char* value = std::getenv("CARAVAN_SIMD");
    return requested_isa(value == nullptr ? "" : value, detected_isa());
  }();
  return chosen;
}

}  // namespace caravan::simd
