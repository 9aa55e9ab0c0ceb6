#pragma once

#include <ATen/core/Tensor.h>

namespace caravan {

/// While it lives, tensors without memory of this thread stand for those of an accelerator: kernels are chosen as
/// there, not as on this processor.
class AcceleratorScope {
 public:
  explicit AcceleratorScope(bool is_accelerator) noexcept;
  ~AcceleratorScope();
  AcceleratorScope(const AcceleratorScope&) = delete;
  AcceleratorScope& operator=(const AcceleratorScope&) = delete;
  static bool is_active() noexcept;

 private:
  bool before_;
};

/// Whether a tensor is on an accelerator, or stands for one that is.
bool is_on_accelerator(const at::Tensor& x);

}  // namespace caravan
