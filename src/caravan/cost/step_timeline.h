#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "caravan/base/trace/kernel_log.h"
#include "caravan/comm/types.h"

namespace caravan {

/// What one rank does in a step, in order, without times: the kernels that it computes, the calls that it begins and
/// waits for. A rehearsal records it; simulate() puts it on a clock.
struct StepTimeline {
  struct Call {
    std::string axis{};  ///< "world": over all ranks
    Verb verb = Verb::barrier;
    std::string what{};     ///< equal on the ranks that take part: "blocks.0"
    double sent_bytes = 0;  ///< of this rank, as Traffic counts them
    int peer = -1;          ///< of send and recv: a rank of the axis
  };
  struct Moment {
    enum class Kind : uint8_t {
      kernel,  ///< of `kernels`
      begin,   ///< of a call
      end,     ///< the rank waits for a call
    };
    Kind kind = Kind::kernel;
    int32_t index = 0;  ///< of `kernels` or `calls`
    int32_t event = 0;  ///< of `events`
  };
  std::vector<std::string> events{};  ///< "forward blocks.3 of micro-batch 1"
  std::vector<KernelWork> kernels{};  ///< that differ
  std::vector<Call> calls{};
  std::vector<Moment> moments{};

  double flops() const noexcept;  ///< of all kernels
};

/// A timeline that is built moment by moment.
class TimelineBuilder {
 public:
  /// What follows belongs to this event.
  void begin_event(const std::string& what);
  /// What follows belongs to an event that has begun before.
  void return_to(int32_t event) noexcept { event_ = event; }
  void add(const KernelWork& work);
  /// Returns the number of the call.
  int32_t begin(StepTimeline::Call call);
  void end(int32_t call);
  StepTimeline take();

 private:
  void add(StepTimeline::Moment::Kind kind, int32_t index) { timeline_.moments.push_back({kind, index, event_}); }
  StepTimeline timeline_;
  std::map<KernelWork, int32_t> number_of_;
  int32_t event_ = 0;
};

}  // namespace caravan
