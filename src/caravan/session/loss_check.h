#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>

namespace caravan {

/// The name of the operation that makes `loss` if that is a mean over the elements that it is given and nothing scales
/// it afterwards: "NllLossBackward0"; "" otherwise.
std::string mean_that_makes(const at::Tensor& loss);
/// Watches for the first backward() of this thread during its lifetime.
class BackwardWatch {
 public:
  BackwardWatch();
  ~BackwardWatch();
  BackwardWatch(const BackwardWatch&) = delete;
  BackwardWatch& operator=(const BackwardWatch&) = delete;

  /// mean_that_makes() the tensor whose backward that is; "" before.
  const std::string& mean() const noexcept { return mean_; }

 private:
  static std::unique_ptr<at::ObserverContext> see(const at::RecordFunction& function);

  bool has_seen_ = false;
  std::string mean_;
  BackwardWatch* outer_;
  uint64_t callback_;
};

/// Throws UsageError: `mean` is over the rows of one of `parts` parts of the batch, whose gradients are summed.
[[noreturn]] void refuse_mean(const std::string& mean, int64_t parts);

}  // namespace caravan
