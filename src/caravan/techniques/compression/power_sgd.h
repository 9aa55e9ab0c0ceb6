#pragma once

#include <map>

#include "caravan/techniques/compression/error_feedback.h"

namespace caravan {

/// Sums gradients of matrices as products of two low-rank factors: one step of power iteration, started from the factor
/// of the last step. The approximation error is kept in a residual that is added to the next gradients (error
/// feedback). Vectors, and matrices whose factors would not be smaller, are summed as they are. (Vogels et al.,
/// "PowerSGD: practical low-rank gradient compression for distributed optimization", NeurIPS 2019.)
///
///   sends for an [a, b] matrix 2(n-1)/n x 4 rank (a + b) bytes in place of 2(n-1)/n x 4 a b
///   memory: 4 bytes a parameter for the residual, and 4 rank b for each matrix
///
/// The sum is computed from the factors on every rank, with the same bits on unlike processors. Gradients are
/// fp32 (fp64).
class PowerSgdHook final : public ErrorFeedbackHook {
 public:
  /// `rank`: columns of a factor, at least 1. Throws UsageError.
  explicit PowerSgdHook(int64_t rank = 4, uint64_t seed = 0);

  std::string name() const override;
  void reduce(const GradientRange& range, TransferStages& stages) override;
  std::vector<std::pair<std::string, at::Tensor>> shared() const override;
  void set_shared(const std::string& name, const at::Tensor& value) override;

 private:
  struct Matrix;
  struct Message;
  at::Tensor& factor_of(const GradientRange::Piece& piece, int64_t columns);

  int64_t rank_;
  uint64_t seed_;
  std::map<std::string, at::Tensor> factors_;  ///< [columns, rank] by parameter: factors of the last step
};

}  // namespace caravan
