#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "caravan/comm/c10d/steps.h"

namespace caravan {

/// The sum over ranks of a sparse tensor (COO), in rank order: every rank gathers all indices and values, whose number
/// may differ by rank, and adds them up. Two rounds: first the shapes, then what they describe.
class C10dSparseSum {
 public:
  /// Throws UsageError unless `tensor` is a sparse CPU tensor of at most kMaxDims dims.
  C10dSparseSum(const c10d_steps::Group& group, const at::Tensor& tensor);

  c10d_steps::Step gather_shapes();
  /// After the first round. Throws CommError, the same on every rank, if the ranks' shapes or dtypes differ. The steps
  /// write the sum into the tensor when the last one finishes.
  std::vector<c10d_steps::Step> gather_entries();

 private:
  static constexpr int64_t kMaxDims = 16;

  int64_t num_entries(int rank) const;
  void check_shapes() const;
  void add_up(const at::Tensor& indices, const at::Tensor& values) const;

  c10d_steps::Group group_;
  at::Tensor tensor_;
  at::Tensor entries_;  ///< of this rank, coalesced
  at::Tensor own_shape_;
  at::Tensor shapes_;  ///< [ranks, 3 + kMaxDims]: entries, dtype, sparse dims, sizes
};

}  // namespace caravan
