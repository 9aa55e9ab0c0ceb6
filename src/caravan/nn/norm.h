#pragma once

#include <memory>

#include "caravan/module/module.h"
#include "caravan/nn/row_reduction.h"

namespace caravan {

/// (x - mean) / sqrt(variance + epsilon) * weight + bias over the last dim: torch's kernels. x: [.., width], of the
/// weight's dtype. The gradients of weight and bias are accumulated.
at::Tensor layer_norm(const at::Tensor& x, Parameter& weight, Parameter& bias, double epsilon);

/// x * weight / sqrt(mean of x^2 over the last dim + epsilon). x: [.., width], of the weight's dtype. Statistics in
/// fp32. The gradient of weight is accumulated.
at::Tensor rms_norm(const at::Tensor& x, Parameter& weight, double epsilon);

/// The same two (rms_norm without a bias) for rows that are split over ranks: x and the parameters hold a piece of
/// each. Forward and backward each reduce two sums a row, in one call.
at::Tensor split_norm(const at::Tensor& x, Parameter& weight, Parameter* bias, double epsilon,
                      const std::shared_ptr<RowReduction>& reduction);

/// layer_norm over the features.
class LayerNorm final : public Layer {
 public:
  LayerNorm(int64_t width, double epsilon);
  /// The features are split over ranks: `reduction` sums their statistics. Null: they are whole.
  void set_row_reduction(std::shared_ptr<RowReduction> reduction) { reduction_ = std::move(reduction); }

 protected:
  at::Tensor forward(const at::Tensor& input, const ForwardContext& context) override;

 private:
  double epsilon_;
  Parameter& weight_;
  Parameter& bias_;
  std::shared_ptr<RowReduction> reduction_;
};

/// rms_norm over the features.
class RmsNorm final : public Layer {
 public:
  RmsNorm(int64_t width, double epsilon);
  /// As LayerNorm's.
  void set_row_reduction(std::shared_ptr<RowReduction> reduction) { reduction_ = std::move(reduction); }

 protected:
  at::Tensor forward(const at::Tensor& input, const ForwardContext& context) override;

 private:
  double epsilon_;
  Parameter& weight_;
  std::shared_ptr<RowReduction> reduction_;
};

}  // namespace caravan
