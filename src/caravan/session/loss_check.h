#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>

namespace caravan {

/// The name of the operation that makes `loss` if that is a mean over the elements that it is given and nothing scales
/// it afterwards: "NllLossBackward0"; "" otherwise.
std::string mean_that_makes(const at::Tensor& loss);

struct SeenBackwards;

/// While one lives, what makes the tensor of each backward() of this thread is seen.
class BackwardWatch {
 public:
  BackwardWatch();
  ~BackwardWatch();
  BackwardWatch(const BackwardWatch&) = delete;
  BackwardWatch& operator=(const BackwardWatch&) = delete;

  /// For a hook of a tensor: mean_that_makes() the tensor whose backward() runs.
  std::string mean() const;

 private:
  static const std::shared_ptr<SeenBackwards>& seen_here();
  static std::unique_ptr<at::ObserverContext> see(const at::RecordFunction& function);

  std::shared_ptr<SeenBackwards> seen_;
};

/// Throws UsageError for a loss that acts as a mean over its rows though gradients are summed over `parts` parts of the
/// batch, or as a sum though they are averaged: the losses of two halves add up to that of both for a sum, and to twice
/// as much for a mean.
void check_kind(const std::function<at::Tensor(const at::Tensor& output, const at::Tensor& target)>& loss,
                const at::Tensor& output, const at::Tensor& target, bool average, int64_t parts);

/// Throws UsageError: `mean` is over the rows of one of `parts` parts of the batch, whose gradients are summed.
[[noreturn]] void refuse_mean(const std::string& mean, int64_t parts);

}  // namespace caravan
