#pragma once

#include <ATen/core/Tensor.h>

#include "caravan/mesh/mesh.h"

namespace caravan {

/// The tensors and settings of a batch norm, such as a torch::nn::BatchNorm.
struct BatchNormState {
  at::Tensor weight{};        ///< [channels]; undefined: 1
  at::Tensor bias{};          ///< undefined: 0
  at::Tensor running_mean{};  ///< undefined: always use the statistics of the batch
  at::Tensor running_var{};
  double momentum = 0.1;  ///< weight of this batch in the running statistics
  double eps = 1e-5;
  bool is_training = true;
};

/// Batch normalisation over the rows of all ranks of an axis, with the result of one process on all rows. x is local,
/// [rows, channels, ..], with any number of rows on each rank, including none. (Zhang et al., arXiv 1803.08904.)
///
/// In training every rank of the axis calls it, in the same order, forward and backward. The running statistics are
/// those of all rows, and so the same on every rank.
///   sends   two all-reduces of [channels] in forward, and two in backward, in fp64; outside of training nothing
///   dtypes  y has that of x. fp16 and bf16 are computed with in fp32, and counts are exact
///   grad    of x, weight and bias; the latter two are this rank's summands, as Ddp expects
///   throws  ShapeError for another number of channels, and if all ranks together have fewer than 2 values a channel
at::Tensor sync_batch_norm(const at::Tensor& x, const BatchNormState& state, const MeshAxis& axis);

/// The same for a torch::nn::BatchNorm1d, 2d or 3d in your own forward: `sync_batch_norm(x, norm, axis)` instead of
/// `norm(x)`.
template <class BatchNorm>
at::Tensor sync_batch_norm(const at::Tensor& x, BatchNorm& norm, const MeshAxis& axis) {
  double momentum = norm->options.momentum().value_or(0);
  if (norm->is_training() && norm->num_batches_tracked.defined()) {
    norm->num_batches_tracked.add_(1);
    // As in torch: without a momentum the running statistics are the means over all batches.
    if (!norm->options.momentum()) momentum = 1 / norm->num_batches_tracked.template item<double>();
  }
  return sync_batch_norm(x,
                         BatchNormState{.weight = norm->weight,
                                        .bias = norm->bias,
                                        .running_mean = norm->running_mean,
                                        .running_var = norm->running_var,
                                        .momentum = momentum,
                                        .eps = norm->options.eps(),
                                        .is_training = norm->is_training()},
                         axis);
}

}  // namespace caravan
