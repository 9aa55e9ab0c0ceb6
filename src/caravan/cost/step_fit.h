#pragma once

#include <string>
#include <vector>

#include "caravan/base/trace/kernel_log.h"
#include "caravan/cost/hardware.h"

namespace caravan {

/// A forward and backward pass of some layers: its kernels, and how long it took.
struct TimedStep {
  std::string what{};  ///< "gpt2 2 x 192, 1536 tokens"
  std::vector<KernelWork> kernels{};
  double seconds = 0;
};

struct StepFit {
  double kernel_seconds = 0;
  double kernel_bytes_per_second = 0;
  double operand_bytes_per_second = 0;
  double typical_error = 0;  ///< root mean square of the logarithm of formula / time
  double worst_error = 0;
};

/// What other kernels than products take on `device`, any kernel besides its work, and products for operands that are
/// in no cache, so that the time of each step in `dtype` is nearest to what it took: least squares of relative errors,
/// nothing takes less than no time, and bytes that the steps do not tell apart go at the rate of the memory. The
/// arithmetic of products and attention is known.
StepFit fit_kernels(const HardwareDevice& device, const std::string& dtype, const std::vector<TimedStep>& steps);

}  // namespace caravan
