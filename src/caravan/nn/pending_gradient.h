#pragma once

#include <cstdint>
#include <memory>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include "caravan/module/parameter.h"

namespace caravan {

/// The gradient of a parameter that forward passes compute, until their backward deposits it. Forwards that are in
/// flight at the same time (of a pipeline) add to one sum, so that m of them do not hold m gradients; the last backward
/// among them deposits it. In a step of an engine that is the sum of the step itself, and nothing is copied.
class PendingGradient {
 public:
  explicit PendingGradient(Parameter& parameter);

  /// The share of one forward. Its graph owns it; one that is destroyed without backward takes its summands out if they
  /// are alone in the sum, else the next deposit throws. May outlive the PendingGradient.
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
  /// In backward. Throws UsageError if summands of a forward that will have no backward are mixed into the sum, or if
  /// this was called before.
  void deposit();

 private:
  Parameter& parameter_;
  std::shared_ptr<Sum> sum_;
  uint64_t epoch_;
  bool is_deposited_ = false;
};

}  // namespace caravan
