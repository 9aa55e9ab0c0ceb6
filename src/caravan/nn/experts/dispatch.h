#pragma once

#include <string_view>

#include <ATen/core/Tensor.h>

#include "caravan/nn/product/kernels.h"

namespace caravan {

/// This library's ops run on CPU and meta tensors. Throws UsageError for other devices.
void check_device(std::string_view op, const at::Tensor& tensor);

[[noreturn]] void refuse_dtype(std::string_view op, at::ScalarType type);

/// Calls f(T{}) with the C++ type for `type`: float, double, kernels::Bf16 or kernels::Fp16. Throws UsageError for any
/// other type.
template <class F>
void with_dtype(std::string_view op, at::ScalarType type, F f) {
  switch (type) {
    case at::kFloat: return f(float{});
    case at::kDouble: return f(double{});
    case at::kBFloat16: return f(kernels::Bf16{});
    case at::kHalf: return f(kernels::Fp16{});
    default: refuse_dtype(op, type);
  }
}

/// The dtype of statistics for tensors of `type`: fp64 for fp64, else fp32.
inline at::ScalarType compute_type(at::ScalarType type) { return type == at::kDouble ? at::kDouble : at::kFloat; }

template <class T>
T* data_of(const at::Tensor& contiguous) {
  return static_cast<T*>(contiguous.data_ptr());
}

}  // namespace caravan
