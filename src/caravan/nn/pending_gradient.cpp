#include "caravan/nn/pending_gradient.h"

#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros_like.h>

#include "caravan/base/error.h"
#include "caravan/nn/dispatch.h"
#include "caravan/nn/product.h"

namespace caravan {

struct PendingGradient::Sum {
  at::Tensor tensor;  ///< fp32 (fp64 for fp64); undefined: no summand yet
  bool is_empty = true;
  int64_t step = 0;          ///< the step whose own sum it is; 0: a buffer of its own
  bool began_empty = true;   ///< what was added can be forgotten
  int64_t num_forwards = 0;  ///< that have a share of it
  int64_t num_waiting = 0;   ///< of them: those that wait for their backward
  int64_t num_deposited = 0;
  bool is_spoilt = false;  ///< a share that is mixed with others was dropped
  uint64_t epoch = 0;      ///< counts the sums: a share of an earlier one has no part in this

  void restart() {
    const uint64_t next = epoch + 1;
    *this = {};
    epoch = next;
  }
};

PendingGradient::PendingGradient(Parameter& parameter) : parameter_(parameter), sum_(std::make_shared<Sum>()) {}

PendingGradient::SharePtr PendingGradient::begin() {
  const int64_t step = parameter_.open_step();
  if (step != sum_->step) sum_->restart();
  if (step > 0 && sum_->num_forwards == 0) {
    const GradientSink::Sum direct = parameter_.early_sum();
    sum_->tensor = direct.tensor;
    sum_->is_empty = sum_->began_empty = direct.is_empty;
    sum_->step = step;
  }
  ++sum_->num_forwards;
  ++sum_->num_waiting;
  return c10::make_intrusive<Share>(parameter_, sum_);
}

PendingGradient::Share::Share(Parameter& parameter, std::shared_ptr<Sum> sum)
    : parameter_(parameter), sum_(std::move(sum)), epoch_(sum_->epoch) {}

PendingGradient::Share::~Share() {
  if (is_deposited_ || epoch_ != sum_->epoch) return;
  --sum_->num_waiting;
  sum_->is_spoilt = true;
  if (sum_->num_waiting == 0 && sum_->num_deposited == 0 && sum_->began_empty) sum_->restart();  // all were dropped
}

void PendingGradient::Share::add_product(const at::Tensor& a, const at::Tensor& b) {
  if (!sum_->tensor.defined()) {
    sum_->tensor = at::empty({a.size(0), b.size(0)}, a.options().dtype(compute_type(a.scalar_type())));
  }
  caravan::add_product(sum_->tensor, sum_->is_empty, a, b, ProductKind::dw);
  sum_->is_empty = false;
}

void PendingGradient::Share::deposit() {
  if (is_deposited_) {
    throw UsageError({"cross_entropy", parameter_.name(), "the loss was back-propagated before", "",
                      "run the model again for a second backward"});
  }
  if (epoch_ != sum_->epoch || sum_->is_spoilt) {
    sum_->restart();
    throw UsageError({"cross_entropy", parameter_.name(),
                      "a loss was computed with gradients and never back-propagated, while others were in flight", "",
                      "evaluate under a NoGradGuard"});
  }
  is_deposited_ = true;
  ++sum_->num_deposited;
  if (--sum_->num_waiting > 0) return;
  const Sum total = *sum_;
  sum_->restart();
  if (total.is_empty) {  // no token at all
    parameter_.deposit(at::zeros_like(parameter_.compute()));
  } else if (total.step > 0) {
    parameter_.deposited();
  } else {
    parameter_.deposit(total.tensor);
  }
}

}  // namespace caravan
