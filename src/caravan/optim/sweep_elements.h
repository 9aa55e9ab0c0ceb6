#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "caravan/base/parallel_for.h"
#include "caravan/optim/kernels.h"

namespace caravan {

/// Calls f(values, gradients, begin, count) for stretches of two flat tensors, in their types: values in fp32 or fp64,
/// gradients of the same type, or in bf16. On the threads of the rank.
template <class F>
void sweep_elements(const at::Tensor& values, const at::Tensor& gradients, const F& f) {
  const auto sweep = [&]<class T, class G>(T, G) {
    auto* to = static_cast<T*>(values.data_ptr());
    const auto* from = static_cast<const G*>(gradients.const_data_ptr());
    parallel_for(0, values.numel(), int64_t{1} << 15,
                 [&](int64_t begin, int64_t end) { f(to + begin, from + begin, begin, end - begin); });
  };
  if (values.scalar_type() == at::kDouble) {
    sweep(double{}, double{});
  } else if (gradients.scalar_type() == at::kBFloat16) {
    sweep(float{}, kernels::Bf16{});
  } else {
    sweep(float{}, float{});
  }
}

}  // namespace caravan
