#include "caravan/nn/pending_gradient.h"

#include <utility>

#include <ATen/Parallel.h>
#include <ATen/ops/zeros_like.h>

#include "caravan/base/error.h"
#include "caravan/nn/dispatch.h"

namespace caravan {

struct PendingGradient::Sum {
  at::Tensor tensor;         ///< fp32 (fp64 for fp64); undefined: no summand yet
  int64_t num_forwards = 0;  ///< that have a share of it
  int64_t num_waiting = 0;   ///< of them: those that wait for their backward
  bool is_spoilt = false;    ///< a share that is mixed with others was dropped
  uint64_t epoch = 0;        ///< counts the sums: a share of an earlier one has no part in this

  void restart() {
    tensor = at::Tensor();
    num_forwards = num_waiting = 0;
    is_spoilt = false;
    ++epoch;
  }
};

PendingGradient::PendingGradient(Parameter& parameter) : parameter_(parameter), sum_(std::make_shared<Sum>()) {}

PendingGradient::SharePtr PendingGradient::begin() {
  ++sum_->num_forwards;
  ++sum_->num_waiting;
  return c10::make_intrusive<Share>(parameter_, sum_);
}

PendingGradient::Share::Share(Parameter& parameter, std::shared_ptr<Sum> sum)
    : parameter_(parameter), sum_(std::move(sum)), epoch_(sum_->epoch) {}

PendingGradient::Share::~Share() {
  if (is_deposited_ || epoch_ != sum_->epoch) return;
  if (sum_->num_forwards == 1) {
    sum_->restart();
  } else {
    --sum_->num_waiting;
    sum_->is_spoilt = true;
  }
}

void PendingGradient::Share::add(const at::Tensor& summand) {
  at::Tensor& sum = sum_->tensor;
  if (!sum.defined() || summand.is_meta()) {
    sum = summand.to(compute_type(summand.scalar_type()));
    return;
  }
  const at::Tensor part = summand.contiguous();
  with_dtype("gradient", part.scalar_type(), [&](auto type) {
    using T = decltype(type);
    at::parallel_for(0, part.numel(), int64_t{1} << 15, [&](int64_t begin, int64_t end) {
      kernels::accumulate(data_of<T>(part) + begin, data_of<kernels::Compute<T>>(sum) + begin, end - begin);
    });
  });
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
  if (--sum_->num_waiting > 0) return;
  const at::Tensor total = std::move(sum_->tensor);
  sum_->restart();
  parameter_.deposit(total.defined() ? total : at::zeros_like(parameter_.compute()));
}

}  // namespace caravan
