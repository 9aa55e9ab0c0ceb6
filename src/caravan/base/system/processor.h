#pragma once

#include <string>

namespace caravan {

/// The class of this processor: its vendor and the best instruction set that CARAVAN_SIMD allows, such as "amd avx2",
/// "intel avx512_bf16" or "intel amx"; "arm", or "other" on other architectures. Which library multiplies fastest
/// depends on it, so rules and figures are given per class.
std::string processor_class();

}  // namespace caravan
