#pragma once

#include <string_view>

#include <ATen/core/Tensor.h>

#include "caravan/module/context.h"
#include "caravan/nn/kernels.h"

namespace caravan {

/// Own ops run on the CPU and on meta tensors (shapes alone). Throws UsageError for another device.
void check_device(std::string_view op, const at::Tensor& tensor);

/// What an op gives for meta tensors where ATen's C++ half has no meta kernel: an empty tensor of this shape, of a's
/// dtype, with gradients of the shapes of a, b and c.
at::Tensor shape_only(const at::Tensor& a, const at::Tensor& b, const at::Tensor& c, at::IntArrayRef shape);

[[noreturn]] void refuse_dtype(std::string_view op, at::ScalarType type);

/// Calls f(T{}) with the kernels' type for `type`: float, double or Bf16. Throws UsageError for any other.
template <class F>
void with_dtype(std::string_view op, at::ScalarType type, F f) {
  switch (type) {
    case at::kFloat: return f(float{});
    case at::kDouble: return f(double{});
    case at::kBFloat16: return f(kernels::Bf16{});
    default: refuse_dtype(op, type);
  }
}

/// fp32, or fp64 for fp64: what statistics of tensors of `type` are kept in.
inline at::ScalarType compute_type(at::ScalarType type) { return type == at::kDouble ? at::kDouble : at::kFloat; }

template <class T>
T* data_of(const at::Tensor& contiguous) {
  return static_cast<T*>(contiguous.data_ptr());
}

/// Where a run of `local_size` indices of `dim` lies in the global tensor. A tensor that holds the dim whole starts at
/// 0, even where the stream around it is cut: a technique has gathered it.
inline Piece piece_of(const ForwardContext& context, Dim dim, int64_t local_size) {
  const int64_t global = context.global(dim, local_size);
  return {.offset = local_size == global ? 0 : context.offset(dim), .global = global};
}

}  // namespace caravan
