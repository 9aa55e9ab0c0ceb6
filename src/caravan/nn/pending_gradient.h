#pragma once

#include <cstdint>
#include <memory>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include "caravan/module/parameter.h"

namespace caravan {

/// The gradient of a parameter that forward passes compute, until their backward accumulates it. In a step of an engine
/// it is added directly to the sum of the step, without a copy. Otherwise forwards in flight at the same time add to
/// one sum, so that m of them do not hold m gradients; the last backward among them accumulates it.
class PendingGradient {
 public:
  explicit PendingGradient(Parameter& parameter);
  ~PendingGradient();
  PendingGradient(const PendingGradient&) = delete;
  PendingGradient& operator=(const PendingGradient&) = delete;

  /// The share of one forward, owned by its graph. If it is destroyed without backward, it removes its summands if they
  /// are alone in the sum; else the next accumulation, or the end of the step, throws. May outlive the PendingGradient.
  class Share;
  using SharePtr = c10::intrusive_ptr<Share>;
  SharePtr begin();

 private:
  struct Sum;
  Parameter& parameter_;
  std::shared_ptr<Sum> sum_;
};

class PendingGradient::Share final : public torch::CustomClassHolder {
 public:
  Share(Parameter& parameter, std::shared_ptr<Sum> sum);
  ~Share() override;

  /// Adds a b^T, in forward: [rows, k] and [columns, k] for a parameter of [rows, columns].
  void add_product(const at::Tensor& a, const at::Tensor& b);
  /// In backward. Throws UsageError if summands of a forward that will have no backward are mixed into the sum, if the
  /// step of the forward is over, or if this was called before.
  void accumulate_grad();

 private:
  bool is_in_its_step() const;
  void accumulate_sum();

  Parameter& parameter_;
  std::shared_ptr<Sum> sum_;
  uint64_t epoch_;
  int64_t step_;  ///< step of the engine to whose sum it adds; 0: to sum_
  bool is_empty_ = true;
  bool is_accumulated_ = false;
};

}  // namespace caravan
