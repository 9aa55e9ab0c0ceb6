#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "caravan/module/parameter.h"

namespace caravan {

/// Copies of tokens as rows, sorted by their group: the expert that each goes to. Copy j of token t is number
/// t x top_k + j; copies of a group keep the order of their numbers.
struct ExpertRows {
  at::Tensor copy{};            ///< [rows] the copy in each row
  at::Tensor row{};             ///< [tokens x top_k] the row of each copy; -1: it has none
  std::vector<int64_t> counts;  ///< rows of each group
  int64_t top_k = 1;
};

/// During its lifetime the experts of this rank get up to `most` times as many copies of meta tokens, on this thread,
/// as with equal loads, but no more than all copies.
class ExpertLoadScope {
 public:
  explicit ExpertLoadScope(double most) noexcept;
  ~ExpertLoadScope();
  ExpertLoadScope(const ExpertLoadScope&) = delete;
  ExpertLoadScope& operator=(const ExpertLoadScope&) = delete;
  /// The factor of the innermost scope, else 1.
  static double current() noexcept;

 private:
  double outer_;
};

/// Sorts copies by group, [.., top_k] int64 from 0 to `num_groups` - 1; -1: a copy without a row. For meta tensors one
/// in `meta_parts` copies has a row (see ExpertLoadScope), and groups are even. Throws ShapeError for any other group.
ExpertRows sort_by_group(const at::Tensor& groups, int64_t num_groups, int64_t meta_parts = 1);

/// {x [tokens, width]} -> [rows, width]. Backward adds up the copies of a token.
at::Tensor spread(const at::Tensor& x, const ExpertRows& rows);
/// The inverse: [rows, width] -> [tokens, top_k, width], zero for a copy without a row.
at::Tensor collect(const at::Tensor& y, const ExpertRows& rows);

/// The sum of a token's copies [tokens, top_k, width], weighted by its gates [tokens, top_k], in the gates' dtype:
/// [tokens, width] in the dtype of the copies.
at::Tensor mix(const at::Tensor& copies, const at::Tensor& gates);

/// Applies each expert's linear layer to its rows of x [rows, in], sorted by expert: y = x W_e^T + b_e. The rows of
/// expert e in `weight` and `bias` are [e out, (e + 1) out). Differentiable once.
///   grad    of x is computed first, then those of weight and bias are passed to Parameter::accumulate_grad_later; zero
///           for an expert without rows
at::Tensor expert_linear(const at::Tensor& x, const std::vector<int64_t>& counts, Parameter& weight, Parameter* bias);

}  // namespace caravan
