#pragma once

#include <ATen/core/Tensor.h>

namespace caravan {

/// While one lives, torch computes products and convolutions of this thread in a lower precision (its autocast), and
/// what needs it in fp32: losses, norms, softmax. At its end the copies of weights that autocast keeps are dropped, so
/// that the next step does not compute with those of this one. backward() comes after it.
///
///   at::Tensor forward(const at::Tensor& images) {
///     const Autocast autocast;
///     return out(norm(conv(images)).relu().flatten(1));
///   }
///
/// Throws UsageError for a dtype other than bf16 and fp16.
class Autocast {
 public:
  explicit Autocast(at::ScalarType dtype = at::kBFloat16);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  bool was_enabled_;
  at::ScalarType was_dtype_;
};

}  // namespace caravan
