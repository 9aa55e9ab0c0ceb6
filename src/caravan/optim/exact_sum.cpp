#include "caravan/optim/exact_sum.h"

#include <bit>
#include <cmath>
#include <limits>

namespace caravan {
namespace {

constexpr int kLimbBits = 32;
constexpr int kMantissaBits = 52;
constexpr int kLeastExponent = -1074;  ///< of the lowest bit of the lowest limb

}  // namespace

void ExactSum::add(double value) noexcept {
  if (!std::isfinite(value)) {
    ++words_[kLimbs + (std::isnan(value) ? 1 : 0)];
    return;
  }
  const auto bits = std::bit_cast<uint64_t>(value);
  const auto exponent = static_cast<int>(bits >> kMantissaBits);
  const uint64_t fraction = bits & ((uint64_t{1} << kMantissaBits) - 1);
  const uint64_t mantissa = exponent == 0 ? fraction : fraction | (uint64_t{1} << kMantissaBits);
  const int shift = exponent == 0 ? 0 : exponent - 1;
  const auto limb = static_cast<size_t>(shift / kLimbBits);
  const uint64_t low = (mantissa & 0xffffffff) << (shift % kLimbBits);  // below 2^63
  const uint64_t high = (mantissa >> kLimbBits) << (shift % kLimbBits);
  words_[limb] += static_cast<int64_t>(low & 0xffffffff);
  words_[limb + 1] += static_cast<int64_t>((low >> kLimbBits) + (high & 0xffffffff));
  words_[limb + 2] += static_cast<int64_t>(high >> kLimbBits);
}

double ExactSum::value() const noexcept {
  if (words_[kLimbs + 1] > 0) return std::numeric_limits<double>::quiet_NaN();
  if (words_[kLimbs] > 0) return std::numeric_limits<double>::infinity();
  // Carries first, so that limbs are below 2^32, and the value does not depend on how the sum was cut.
  std::array<int64_t, kLimbs> limbs{};
  int64_t carry = 0;
  for (size_t i = 0; i < kLimbs; ++i) {
    const int64_t sum = words_[i] + carry;
    limbs[i] = sum & 0xffffffff;
    carry = sum >> kLimbBits;
  }
  double value = std::ldexp(static_cast<double>(carry), kLimbs * kLimbBits + kLeastExponent);
  for (size_t i = kLimbs; i-- > 0;) {
    value += std::ldexp(static_cast<double>(limbs[i]), static_cast<int>(i) * kLimbBits + kLeastExponent);
  }
  return value;
}

}  // namespace caravan
