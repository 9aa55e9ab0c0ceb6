#pragma once

#include <ATen/core/Tensor.h>

namespace caravan {

/// Caps logits in place, cap tanh(logits / cap), and remembers what their gradient needs. A cap of 0 does nothing.
class CappedLogits {
 public:
  CappedLogits(const at::Tensor& logits, double cap, bool has_gradient) {
    if (cap == 0) return;
    logits.div_(cap).tanh_();
    if (has_gradient) slopes_ = 1 - logits * logits;
    logits.mul_(cap);
  }
  /// Turns the gradient of the capped logits into that of the logits, in place.
  void back_propagate(const at::Tensor& gradient) const {
    if (slopes_.defined()) gradient.mul_(slopes_);
  }

 private:
  at::Tensor slopes_{};
};

}  // namespace caravan
