#include "caravan/nn/pending_gradient.h"

#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>

#include "caravan/base/error.h"
#include "caravan/nn/experts/dispatch.h"
#include "caravan/nn/product/product.h"

namespace caravan {

/// The sum of forwards outside of a step.
struct PendingGradient::Sum {
  at::Tensor tensor;        ///< fp32 (fp64 for fp64); undefined: no summand yet
  int64_t num_waiting = 0;  ///< forwards that wait for their backward
  int64_t num_accumulated = 0;
  bool is_spoilt = false;  ///< a share that is mixed with others was dropped
  uint64_t epoch = 0;      ///< counts the sums: a share of an earlier sum does not count
  bool has_parameter = true;

  void restart() {
    tensor = at::Tensor();
    num_waiting = num_accumulated = 0;
    is_spoilt = false;
    ++epoch;
  }
};

PendingGradient::PendingGradient(Parameter& parameter) : parameter_(parameter), sum_(std::make_shared<Sum>()) {}
PendingGradient::~PendingGradient() { sum_->has_parameter = false; }

PendingGradient::SharePtr PendingGradient::begin() { return c10::make_intrusive<Share>(parameter_, sum_); }

PendingGradient::Share::Share(Parameter& parameter, std::shared_ptr<Sum> sum)
    : parameter_(parameter), sum_(std::move(sum)), epoch_(sum_->epoch), step_(parameter.open_step()) {
  if (step_ == 0) ++sum_->num_waiting;
}

bool PendingGradient::Share::is_in_its_step() const { return sum_->has_parameter && parameter_.open_step() == step_; }

PendingGradient::Share::~Share() {
  if (is_accumulated_) return;
  if (step_ > 0) {
    if (!is_empty_ && is_in_its_step()) parameter_.withdrawn();
    return;
  }
  if (epoch_ != sum_->epoch) return;
  --sum_->num_waiting;
  sum_->is_spoilt = true;
  if (sum_->num_waiting == 0 && sum_->num_accumulated == 0) sum_->restart();  // all were dropped
}

void PendingGradient::Share::add_product(const at::Tensor& a, const at::Tensor& b) {
  if (step_ > 0) {
    GradientSink::Sum sum = parameter_.early_sum();
    caravan::add_product(sum.tensor, sum.is_empty, a, b, ProductKind::dw);
    if (is_empty_) parameter_.added_early();
  } else {
    const bool is_first = !sum_->tensor.defined();
    if (is_first) {
      sum_->tensor = at::empty({a.size(0), b.size(0)}, a.options().dtype(compute_type(a.scalar_type())));
    }
    caravan::add_product(sum_->tensor, is_first, a, b, ProductKind::dw);
  }
  is_empty_ = false;
}

void PendingGradient::Share::accumulate_grad() {
  if (is_accumulated_) {
    throw UsageError({"cross_entropy", parameter_.name(), "the loss was back-propagated before", "",
                      "run the model again for a second backward"});
  }
  if (step_ == 0) return accumulate_sum();
  if (!is_in_its_step()) {
    throw UsageError({"cross_entropy", parameter_.name(), "the loss was computed in another step", "",
                      "back-propagate it before finish_step()"});
  }
  is_accumulated_ = true;
  if (is_empty_) {  // no tokens at all
    parameter_.accumulate_grad(at::zeros_like(parameter_.compute()));
  } else {
    parameter_.confirmed();
  }
}

void PendingGradient::Share::accumulate_sum() {
  if (epoch_ != sum_->epoch || sum_->is_spoilt) {
    sum_->restart();
    throw UsageError({"cross_entropy", parameter_.name(),
                      "a loss was computed with gradients and never back-propagated, while others were in flight", "",
                      "evaluate under a NoGradGuard"});
  }
  is_accumulated_ = true;
  ++sum_->num_accumulated;
  if (--sum_->num_waiting > 0) return;
  const at::Tensor total = sum_->tensor;
  sum_->restart();
  parameter_.accumulate_grad(total.defined() ? total : at::zeros_like(parameter_.compute()));
}

}  // namespace caravan
