#pragma once

#include <ATen/core/Tensor.h>

namespace caravan {

/// a b^T: [m, k] and [n, k] -> [m, n], any strides. Without gradient: for use inside of own ops.
///
/// fp32 on the CPU goes to oneDNN where torch has it: torch's own choice, MKL, leaves half of the speed of processors
/// with AVX-512 that are not Intel's unused. Everything else, and few rows, goes where torch sends it.
at::Tensor product(const at::Tensor& a, const at::Tensor& b);

/// x weight^T + bias: [.., in] and [out, in] -> [.., out]; bias [out], or undefined. Differentiable once; its three
/// products as above.
at::Tensor linear_product(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias = {});

}  // namespace caravan
