#pragma once

#include <algorithm>
#include <cstdint>

#include <ATen/core/Tensor.h>

#include "caravan/base/trace/kernel_log.h"

namespace caravan {

/// "fp32", "bf16", "fp16", "fp64", else "int".
inline const char* dtype_name_of(at::ScalarType type) noexcept {
  switch (type) {
    case at::kFloat: return "fp32";
    case at::kBFloat16: return "bf16";
    case at::kHalf: return "fp16";
    case at::kDouble: return "fp64";
    default: return "int";
  }
}

/// Counts a kernel of this library that reads or writes each of these tensors once, in the KernelLog of this thread if
/// there is one. Operators of torch are counted where they are observed (cost/torch_kernels.h). Undefined tensors
/// count 0.
template <class First, class... Tensors>
void count_kernel(const char* what, const First& first, const Tensors&... tensors) {
  KernelLog* log = KernelLog::current();
  if (log == nullptr) return;
  const auto bytes = [](const at::Tensor& x) { return x.defined() ? static_cast<int64_t>(x.nbytes()) : 0; };
  log->add({.what = what, .dtype = dtype_name_of(first.scalar_type()), .bytes = (bytes(first) + ... + bytes(tensors))});
}

/// As an integer; tensors that no machine holds have more bytes than there are integers.
inline int64_t bytes_of_count(double bytes) noexcept { return static_cast<int64_t>(std::min(bytes, 9e18)); }

/// Counts `products` products of m x k and k x n that no operator of torch computes. `is_unaligned`: KernelWork.
inline void count_product(const char* what, at::ScalarType type, int64_t m, int64_t n, int64_t k, int64_t products = 1,
                          bool is_unaligned = false) {
  if (KernelLog* log = KernelLog::current()) {
    const auto rows = static_cast<double>(m), columns = static_cast<double>(n), depth = static_cast<double>(k);
    const double bytes = static_cast<double>(c10::elementSize(type)) * static_cast<double>(products) *
                         (rows * depth + depth * columns + rows * columns);
    log->add({.kind = KernelWork::Kind::product,
              .what = what,
              .dtype = dtype_name_of(type),
              .m = m,
              .n = n,
              .k = k,
              .products = products,
              .bytes = bytes_of_count(bytes),
              .is_unaligned = is_unaligned});
  }
}

}  // namespace caravan
