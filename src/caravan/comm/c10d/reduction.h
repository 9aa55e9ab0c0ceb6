#pragma once

#include <optional>
#include <string_view>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "caravan/comm/types.h"

namespace caravan {

/// A reduction of c10d: either a communicator's reduction with work before and after it, or one that this rank computes
/// from the inputs of all ranks.
///
///   communicator's   SUM, MAX, MIN of its dtypes (types.h); AVG (a sum, then one division by the number of ranks, as
///                    in gloo) and PREMUL_SUM (of a scaled copy) of floating point; SUM of bool is its MAX
///   by this rank     PRODUCT; BAND, BOR, BXOR of integers and bool; SUM, MAX, MIN of int8 and int16. In rank order,
///                    bf16 and fp16 in fp32 and rounded once
class C10dReduction {
 public:
  /// Throws UsageError for an op that the dtype of `tensor` does not have.
  static C10dReduction of(const c10d::ReduceOp& op, int size, const at::Tensor& tensor, std::string_view method);

  /// The communicator's op; empty: this rank folds.
  const std::optional<ReduceOp>& native() const noexcept { return native_; }
  /// `in`, or a scaled copy of it.
  at::Tensor scaled(const at::Tensor& in) const;
  void divide(const at::Tensor& out) const;
  /// out = op over the equal parts of `parts`, one of each rank.
  void fold(const at::Tensor& parts, const at::Tensor& out) const;

 private:
  c10d::ReduceOp::RedOpType type_ = c10d::ReduceOp::SUM;
  std::optional<ReduceOp> native_;
  std::optional<double> factor_;  ///< PREMUL_SUM: each rank's own
  int divisor_ = 1;               ///< AVG: the number of ranks
};

}  // namespace caravan
