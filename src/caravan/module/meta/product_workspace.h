#pragma once

#include <functional>
#include <optional>

#include <ATen/core/Tensor.h>

namespace caravan {

/// A library's a b^T + bias.
using ProductCall =
    std::function<at::Tensor(const at::Tensor& a, const at::Tensor& b, const std::optional<at::Tensor>&)>;

/// What `call` takes from torch's allocator for a product of these meta tensors, beside its result: a tensor on the
/// meta device, so that dry runs count it. oneDNN takes a scratchpad, whose size depends on shapes, strides, threads
/// and the processor. It is asked: called once for each such product on tensors without values, and stopped at its
/// scratchpad. Empty in a scope that nobody asks (HeldBlocksScope).
at::Tensor product_workspace(const at::Tensor& a, const at::Tensor& b, const std::optional<at::Tensor>& bias,
                             const ProductCall& call);

}  // namespace caravan
