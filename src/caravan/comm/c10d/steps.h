#pragma once

#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "caravan/comm/c10d/reduction.h"
#include "caravan/comm/communicator.h"

namespace caravan::c10d_steps {

using Tensors = std::vector<at::Tensor>;

/// One operation of a communicator for one tensor or list of c10d: how it starts, and the work left when it is
/// complete. It keeps the tensors alive. Non-contiguous ones go through copies.
///
/// The functions throw UsageError and ShapeError, naming `name`, before anything is sent.
struct Step {
  std::function<Work(Communicator&)> start;
  std::function<void()> finish{};
};

struct Group {
  int rank = 0;
  int size = 1;
  const char* name = "";  ///< of the method, for errors
};

Step broadcast(const Group& group, const at::Tensor& tensor, int root);

/// `outputs`: one tensor for each rank, of any sizes.
Step all_gather(const Group& group, const Tensors& outputs, const at::Tensor& input);
Step all_gather_flat(const Group& group, const at::Tensor& output, const at::Tensor& input);

/// Tensor r of `from` goes to rank r, tensor r of `to` comes from it.
Step exchange(const Group& group, const Tensors& to, const Tensors& from);
/// Parts along dim 0, of `out_rows` and `in_rows` rows for each rank; empty: equal parts.
Step exchange_rows(const Group& group, const at::Tensor& out, const at::Tensor& in,
                   const std::vector<int64_t>& out_rows, const std::vector<int64_t>& in_rows);

Step all_reduce(const Group& group, const C10dReduction& reduction, const at::Tensor& tensor);
Step reduce(const Group& group, const C10dReduction& reduction, const at::Tensor& tensor, int root);
/// `inputs`: one tensor for each rank, of any sizes.
Step reduce_scatter(const Group& group, const C10dReduction& reduction, const at::Tensor& output,
                    const Tensors& inputs);
Step reduce_scatter_flat(const Group& group, const C10dReduction& reduction, const at::Tensor& output,
                         const at::Tensor& input);

}  // namespace caravan::c10d_steps
