#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "caravan/cost/step_timeline.h"

namespace caravan {

/// How long kernels and calls take on some hardware.
class StepCosts {
 public:
  virtual ~StepCosts() = default;
  struct CallTime {
    double seconds = 0;           ///< from the moment when all ranks have begun it
    double of_device = 0;         ///< of these, seconds in which the device computes nothing else
    std::vector<double> loads{};  ///< by level of links: share of them in which it keeps this rank's links busy
  };
  virtual double seconds(const KernelWork& work, int rank) const = 0;
  /// `ranks`: those that take part, of the world; for send and recv the two.
  virtual CallTime seconds(const StepTimeline::Call& call, std::span<const int> ranks) const = 0;
  /// Of the host, until a kernel or call is on its way to the device; 0: the host is the device.
  virtual double launch_seconds(const KernelWork& /*work*/, int /*rank*/) const { return 0; }
  virtual double launch_seconds(const StepTimeline::Call& /*call*/, int /*rank*/) const { return 0; }
  /// By which kernels take longer while the links are in use: 0.1 is a tenth.
  virtual double slowdown_beside_calls() const { return 0; }
  /// Share of a step by which the last of `num_ranks` is late at its end, although all have the same to do.
  virtual double straggling(int /*num_ranks*/) const { return 0; }
};

/// A rank of the world, and what it does.
struct RankTimeline {
  int rank = 0;
  const StepTimeline* timeline = nullptr;
  /// By axis, the ranks of the world that calls over it concern, this one included.
  const std::map<std::string, std::vector<int>>* ranks_of_axis = nullptr;
  int device_rank = -1;  ///< the rank whose device computes it; -1: its own
  int rank_of_device() const noexcept { return device_rank < 0 ? rank : device_rank; }
};

/// A step on a clock.
struct SimulatedStep {
  struct Span {
    int rank = 0;
    std::string row{};  ///< "compute", "wait", or the axis of a call
    std::string what{};
    double begin = 0, end = 0;  ///< seconds
  };
  struct OfRank {
    int rank = 0;
    double seconds = 0;
    double computes = 0;                      ///< in kernels
    double of_products = 0;                   ///< in products and attention
    std::map<std::string, double> exposed{};  ///< by axis: waits for calls; "launches": for the host
    double on_host = 0;                       ///< seconds of kernels of the host, which the clock leaves out
    double flops = 0;
  };
  double seconds = 0;  ///< until the last rank is through, also of those that are not simulated
  std::vector<OfRank> ranks{};
  std::vector<Span> spans{};  ///< with `keep_spans`
};

/// Runs the timelines of some ranks together, one for each place of a pipeline. Other ranks of a call are as early as
/// the simulated one that stands for them. Calls over one axis follow each other, and so do messages to one rank; those
/// of a rank that run at the same time share its links (Flows). The host of a rank launches kernels and calls one after
/// another, ahead of the device, and waits where the rank waits for a call.
/// Throws InternalError if ranks wait for each other forever, naming what each waits for.
SimulatedStep simulate(std::span<const RankTimeline> ranks, const StepCosts& costs, bool keep_spans = false);

}  // namespace caravan
