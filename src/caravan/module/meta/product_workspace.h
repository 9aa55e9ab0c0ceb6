#pragma once

#include <functional>
#include <optional>

#include <ATen/core/Tensor.h>

namespace caravan {

/// A library call that computes a b^T + bias.
using ProductCall =
    std::function<at::Tensor(const at::Tensor& a, const at::Tensor& b, const std::optional<at::Tensor>&)>;

/// The memory that `call` takes from torch's allocator for a product of these meta tensors, except for its result: a
/// tensor on the meta device, so that dry runs count it. oneDNN takes a scratchpad, whose size depends on shapes,
/// strides, threads and the processor. To find it, the call is made once for each such product on tensors without
/// values, and stopped at its scratchpad. Empty in a scope that does not ask for it (HeldBlocksScope).
at::Tensor product_workspace(const at::Tensor& a, const at::Tensor& b, const std::optional<at::Tensor>& bias,
                             const ProductCall& call);

}  // namespace caravan
