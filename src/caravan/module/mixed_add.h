#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

namespace caravan {

/// sum += summand, of any two floating-point dtypes, with the bits of torch's add_. add_ converts the narrower operand
/// too, into temporary memory on the CPU, but without memory on the meta device.
inline void add_mixed(const at::Tensor& sum, const at::Tensor& summand) {
  const at::ScalarType type = c10::promoteTypes(sum.scalar_type(), summand.scalar_type());
  if (type == sum.scalar_type()) {
    sum.add_(summand.to(type));
  } else {
    sum.copy_(sum.to(type).add_(summand));
  }
}

}  // namespace caravan
