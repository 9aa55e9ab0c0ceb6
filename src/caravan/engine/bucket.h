#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "caravan/comm/work.h"
#include "caravan/engine/flat.h"
#include "caravan/module/gradients.h"

namespace caravan {

/// A contiguous range of the flat gradients whose debt is paid in one collective.
struct Bucket {
  int index = 0;
  int64_t offset = 0;  ///< in elements
  int64_t count = 0;
  std::vector<Parameter*> parameters;
};

/// Collects deposited gradients in flat buckets and starts the payment of each as soon as it is full, while backward
/// goes on.
///
/// One step is: begin_step(), any number of backwards, arm() before the last, that backward, finish_step(). The first
/// deposit of a step overwrites, later ones add. Buckets go out in their order on every rank, whatever order gradients
/// arrive in, so the ranks' collectives match; a bucket that is ready early waits for those before it.
class GradientBuckets final : public GradientSink {
 public:
  /// Starts the collective that turns `range` (this rank's summand) into the gradient at rest, in place.
  using Pay = std::function<Work(const Bucket& bucket, const at::Tensor& range)>;

  /// Cuts state.gradients into buckets of at least `bucket_bytes` (the last may be smaller); a parameter is never cut.
  /// `state` outlives this. Throws UsageError if bucket_bytes < 1.
  GradientBuckets(const FlatState& state, int64_t bucket_bytes, Pay pay);

  void begin_step();
  /// The next backward is the last of the step: from now on full buckets are paid.
  void arm();
  void deposit(Parameter& parameter, const at::Tensor& gradient) override;
  /// Pays bucket `index` if it has not gone out yet, and waits for it. In order of the buckets.
  void finish(int index);
  /// All buckets. A parameter that got no gradient in the whole step counts as zero.
  void finish_step();

  const std::vector<Bucket>& buckets() const noexcept { return buckets_; }
  /// Parameters that got no deposit since begin_step.
  std::vector<Parameter*> unused() const;

 private:
  struct Arrival {
    int bucket = 0;
    int deposits = 0;      ///< since arm()
    bool written = false;  ///< since begin_step()
  };

  void pay_ready();
  void pay(int index);

  const FlatState& state_;
  Pay pay_;
  std::vector<Bucket> buckets_;
  std::vector<Arrival> arrivals_;  ///< by slot index
  std::vector<int> missing_;       ///< by bucket: parameters whose gradient is not complete
  std::vector<Work> works_;        ///< by bucket, of those that went out
  bool armed_ = false;
};

}  // namespace caravan
