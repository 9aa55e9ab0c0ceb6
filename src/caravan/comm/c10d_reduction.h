#pragma once

#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "caravan/comm/types.h"

namespace caravan {

/// A reduction of c10d as one of ours, with what comes before and after it.
struct C10dReduction {
  ReduceOp op = ReduceOp::sum;
  std::optional<double> factor;  ///< premul_sum: each rank's own
  int divisor = 1;               ///< avg: the number of ranks

  /// Throws UsageError for an op that no communicator does, and for avg and premul_sum of integers.
  static C10dReduction of(const c10d::ReduceOp& op, int size, const at::Tensor& tensor, std::string_view title);

  /// `in`, or a scaled copy of it.
  at::Tensor scaled(const at::Tensor& in) const;
  void divide(const at::Tensor& out) const;
};

}  // namespace caravan
