#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "caravan/comm/communicator.h"
#include "caravan/cost/hardware.h"
#include "caravan/cost/product_fit.h"
#include "caravan/cost/step_fit.h"

namespace caravan {

/// The kernels of one dtype that were timed, and the formulas for them.
struct MeasuredKernels {
  std::string dtype{};
  std::vector<TimedProduct> products{};
  ProductFit fit{};
  AttentionCost attention{}, attention_backward{};
  std::vector<TimedStep> steps{};  ///< passes through layers in this dtype
  StepFit step_fit{};
};

/// The time that is left for a measurement; all ranks get the same answers.
class Deadline {
 public:
  Deadline(Communicator& world, double seconds) : world_(world), seconds_(seconds) {}

  bool is_given() const noexcept { return seconds_ > 0; }
  /// Whether a measurement of `more` seconds ends within this share of the time.
  bool allows(double more, double share = 1) const;

 private:
  Communicator& world_;
  double seconds_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

/// Four digits: more is noise.
double four_digits(double value);

/// Seconds of a computation on the slowest rank, while all ranks do it: the fastest sample, because others are of what
/// else the machine does.
double kernel_seconds(Communicator& world, const std::function<void()>& compute);

/// Times products, attention and passes through a few layers in each dtype, each rank of `world` at the same time, and
/// fits products and attention. Without a deadline in several rounds, since other programs may slow a machine for
/// seconds; with one, shapes for which there is no time are left out. `device`: cores that compute products, and the
/// launch of a kernel. Every rank of `world` calls it; all get the same figures.
std::vector<MeasuredKernels> time_kernels(Communicator& world, const HardwareDevice& device,
                                          const std::vector<std::string>& dtypes, const Deadline& deadline);

}  // namespace caravan
