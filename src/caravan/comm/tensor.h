#pragma once

#include <ATen/core/Tensor.h>

#include "caravan/comm/communicator.h"

namespace caravan {

/// The dtype of ours that `type` is. Throws UsageError for a type no communicator takes.
Dtype to_dtype(at::ScalarType type);
at::ScalarType to_scalar_type(Dtype dtype);

/// The memory of a contiguous tensor, as communicators take it; a meta tensor has no data. Throws ShapeError naming
/// `what` if the tensor is not contiguous (do: call contiguous()).
Buffer buffer_of(const at::Tensor& tensor, std::string_view what = {});

/// The verbs over tensors: as Communicator's, with the tensors kept alive until the operation is complete.
Work all_reduce_async(Communicator& comm, const at::Tensor& in, const at::Tensor& out, ReduceOp op,
                      const Call& call = {});
Work all_gather_async(Communicator& comm, const at::Tensor& in, const at::Tensor& out,
                      std::span<const int64_t> counts = {}, const Call& call = {});
Work reduce_scatter_async(Communicator& comm, const at::Tensor& in, const at::Tensor& out, ReduceOp op,
                          std::span<const int64_t> counts = {}, const Call& call = {});
Work all_to_all_async(Communicator& comm, const at::Tensor& in, const at::Tensor& out,
                      std::span<const int64_t> send_counts = {}, std::span<const int64_t> recv_counts = {},
                      const Call& call = {});
Work broadcast_async(Communicator& comm, const at::Tensor& tensor, int root, const Call& call = {});
Work reduce_async(Communicator& comm, const at::Tensor& in, const at::Tensor& out, ReduceOp op, int root,
                  const Call& call = {});
Work send_async(Communicator& comm, const at::Tensor& in, int peer, const Call& call = {});
Work recv_async(Communicator& comm, const at::Tensor& out, int peer, const Call& call = {});

/// A flat, zeroed tensor of `count` elements from Communicator::allocate.
/// On the meta device: without memory, and counted as if it had some.
at::Tensor allocate_flat(Communicator& comm, int64_t count, at::ScalarType type, at::Device device = at::kCPU);
/// The same from Communicator::allocate_shared. Every rank calls it with the same count.
at::Tensor allocate_flat_shared(Communicator& comm, int64_t count, at::ScalarType type, at::Device device = at::kCPU);

}  // namespace caravan
