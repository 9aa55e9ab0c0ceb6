#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "caravan/cost/constants.h"
#include "caravan/cost/hardware.h"
#include "caravan/cost/simulate.h"

namespace caravan {

/// Ranks that take part in a call, by where the links of some hardware put them.
struct RankGroup {
  int64_t size = 1;
  /// By level of the hardware: most ranks of the group that are in one of its domains.
  std::vector<int64_t> in_domain{};
  bool is_in_one_domain(size_t level) const noexcept { return in_domain[level] == size; }
};

/// Bytes that a rank sends in a collective over `ranks` of them (comm/traffic.h); `bytes`: of the whole tensor, which
/// every rank has before an all-reduce or reduce-scatter, and after an all-gather. Of all_to_all each has 1/ranks.
double ring_bytes(Verb verb, double bytes, int64_t ranks) noexcept;

/// Operands and results of a kernel of products.
double product_bytes(const KernelWork& work) noexcept;

/// The time of kernels and calls on described hardware, from the data of its devices and links and the numbers in
/// constants.h.
///
/// A product is computed in tiles, many at once (ProductRate). Libraries for accelerators choose the fastest of some
/// tiles, long runs are bound by power (ProductRate::sustained), and sizes that are no multiple of 8 are slow. A
/// processor has the tile that was measured, and nothing else. Every kernel moves its bytes at least.
///
/// A collective is a ring at each level of links that its ranks need, from the inside to the outside; ranks that are
/// neighbours inside share the links to the outside, and the slowest level counts. A processor itself moves the bytes
/// (CallTime::of_device).
class HardwareCosts final : public StepCosts {
 public:
  /// `attention`: rates of fused attention, of that of large products; zeros: those of each device. Throws UsageError
  /// for hardware without devices.
  explicit HardwareCosts(Hardware hardware, fitted::AttentionRate attention = {});

  double seconds(const KernelWork& work, int rank) const override;
  CallTime seconds(const StepTimeline::Call& call, std::span<const int> ranks) const override;
  double launch_seconds(const KernelWork& work, int rank) const override;
  double launch_seconds(const StepTimeline::Call& call, int rank) const override;
  double slowdown_beside_calls() const override;
  double straggling(int num_ranks) const override;

  double seconds(const KernelWork& work, const HardwareDevice& device) const;
  /// Of a collective in which each rank of the group sends `sent_bytes`, from the moment when all have begun it.
  /// `of_level`: gets the seconds in which it keeps the links of each level busy.
  double collective_seconds(Verb verb, double sent_bytes, const RankGroup& group,
                            std::vector<double>* of_level = nullptr) const;
  /// By which the last of some ranks is late for a collective of a step, although all have the same to do.
  double skew_seconds(int64_t ranks) const noexcept;
  double message_seconds(double bytes, const RankGroup& two, std::vector<double>* of_level = nullptr) const;

  RankGroup group_of(std::span<const int> ranks) const;  ///< ascending
  /// Ranks 0, stride, 2 stride ..
  RankGroup group_of(int64_t size, int64_t stride) const;

  const Hardware& hardware() const noexcept { return hardware_; }
  /// The rate of products of a dtype; of the next one that the device has, if it does not have it.
  static const ProductRate& rate_of(const HardwareDevice& device, std::string_view dtype);

 private:
  const HardwareDevice& device_of(int rank) const;

  Hardware hardware_;
  std::vector<size_t> device_of_host_;  // by hosts of hardware_, of its devices
  fitted::AttentionRate attention_;
};

}  // namespace caravan
