#pragma once

#include <ATen/core/Tensor.h>

namespace caravan {

/// GELU in its tanh form, elementwise. x: any shape; the result is contiguous.
at::Tensor tanh_gelu(const at::Tensor& x);

/// gate * sigmoid(gate) * up, elementwise on two tensors of the same shape; saves only its inputs for backward.
at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up);

}  // namespace caravan
