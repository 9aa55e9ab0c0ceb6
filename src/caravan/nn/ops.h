#pragma once

#include <string_view>

#include <ATen/core/Tensor.h>

#include "caravan/module/context.h"
#include "caravan/nn/kernels.h"

namespace caravan {

/// This library's ops run on CPU and meta tensors. Throws UsageError for other devices.
void check_device(std::string_view op, const at::Tensor& tensor);

/// The result of an op on meta tensors where ATen has no meta kernel in C++: an empty tensor of this shape and a's
/// dtype, with gradients of the shapes of a, b and c.
at::Tensor shape_only(const at::Tensor& a, const at::Tensor& b, const at::Tensor& c, at::IntArrayRef shape);

[[noreturn]] void refuse_dtype(std::string_view op, at::ScalarType type);

/// Calls f(T{}) with the C++ type for `type`: float, double or kernels::Bf16. Throws UsageError for any other.
template <class F>
void with_dtype(std::string_view op, at::ScalarType type, F f) {
  switch (type) {
    case at::kFloat: return f(float{});
    case at::kDouble: return f(double{});
    case at::kBFloat16: return f(kernels::Bf16{});
    default: refuse_dtype(op, type);
  }
}

/// The dtype of statistics of tensors of `type`: fp64 for fp64, else fp32.
inline at::ScalarType compute_type(at::ScalarType type) { return type == at::kDouble ? at::kDouble : at::kFloat; }

template <class T>
T* data_of(const at::Tensor& contiguous) {
  return static_cast<T*>(contiguous.data_ptr());
}

/// The position in the global tensor of `local_size` indices of `dim`. A tensor that holds the whole dim starts at 0
/// even where the stream is split: a technique has gathered it.
inline Piece piece_of(const ForwardContext& context, Dim dim, int64_t local_size) {
  const int64_t global = context.global(dim, local_size);
  return {.offset = local_size == global ? 0 : context.offset(dim), .global = global};
}

}  // namespace caravan
