#pragma once

#include <memory>
#include <string_view>

#include "caravan/module/module.h"
#include "caravan/nn/config.h"
#include "caravan/nn/row_reduction.h"

namespace caravan {

/// (x - mean) / sqrt(variance + epsilon) * weight + bias over the last dim. x: [.., width], of the weight's dtype.
/// Statistics in fp32. The gradients of weight and bias are accumulated.
at::Tensor layer_norm(const at::Tensor& x, Parameter& weight, Parameter& bias, double epsilon);

/// x * weight / sqrt(mean of x^2 over the last dim + epsilon). x: [.., width], of the weight's dtype. Statistics in
/// fp32. The gradient of weight is accumulated.
at::Tensor rms_norm(const at::Tensor& x, Parameter& weight, double epsilon);

/// A sum and its norm.
struct NormedSum {
  at::Tensor sum;
  at::Tensor normed;
};

/// {x + branch, layer_norm of it}, or rms_norm without a bias, bit for bit, in one pass over memory in forward and in
/// backward: the gradient of the sum is added where that of the norm is computed. `branch`: of x's shape and dtype;
/// undefined: {a view of x, its norm}.
NormedSum add_norm(const at::Tensor& x, const at::Tensor& branch, Parameter& weight, Parameter* bias, double epsilon);

/// The same norms for rows that are split over ranks: x and the parameters hold a piece of each. Forward and backward
/// each reduce two sums a row, in one call.
at::Tensor split_norm(const at::Tensor& x, Parameter& weight, Parameter* bias, double epsilon,
                      const std::shared_ptr<RowReduction>& reduction);

/// A norm over the last dim of [batch, sequence, feature] or [batch, sequence, head, feature].
class Norm : public Layer {
 public:
  Norm(int64_t width, double epsilon, bool has_bias);
  /// The kind of norm that the model has, of `width` features.
  Norm(const ModelConfig& config, int64_t width) : Norm(width, config.norm_epsilon, config.arch.has_norm_bias()) {}

  /// The features are split over ranks: `reduction` sums their statistics. Null: they are whole.
  void set_row_reduction(std::shared_ptr<RowReduction> reduction) { reduction_ = std::move(reduction); }

  /// {x + branch, this norm of it}, as add() and a run of the module, which are what happens if there are hooks, a
  /// reduction or a dry run; else add_norm. `branch` may be undefined. `what` adds: the calling module.
  NormedSum add_and_run(const at::Tensor& x, const at::Tensor& branch, const ForwardContext& context,
                        std::string_view what);

 protected:
  at::Tensor forward(const at::Tensor& input, const ForwardContext& context) override;

 private:
  double epsilon_;
  Parameter& weight_;
  Parameter* bias_;  ///< null: RMSNorm
  std::shared_ptr<RowReduction> reduction_;
};

}  // namespace caravan
