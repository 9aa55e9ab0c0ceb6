#include "caravan/base/system/processor.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "caravan/base/numeric/simd.h"

namespace caravan {
namespace {

#if defined(__x86_64__)
/// By CPUID, since compilers differ in the names that __builtin_cpu_supports knows.
bool has_amx_bf16() {
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (edx & (1U << 22)) != 0;
}

std::string instruction_set() {
  const bool has_amx = simd::isa() == simd::Isa::avx512_bf16 && has_amx_bf16();
  return has_amx ? "amx" : std::string(simd::name(simd::isa()));
}
#endif

}  // namespace

std::string processor_class() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const char* vendor = __builtin_cpu_is("amd") ? "amd" : __builtin_cpu_is("intel") ? "intel" : "x86";
  return std::string(vendor) + " " + instruction_set();
#elif defined(__aarch64__)
  return "arm";
#else
  return "other";
#endif
}

}  // namespace caravan
