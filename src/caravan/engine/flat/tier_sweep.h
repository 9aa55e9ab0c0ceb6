#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "caravan/engine/flat/flat.h"

namespace caravan {

/// Goes over flat buffers of a model that rest on several tiers, and has their elements together in one place: on the
/// host, part after part, on a thread of its own; or on the device, bucket after bucket, on the caller's. What comes
/// next is read, and what was written is stored, during the work. On the host it holds three parts of what rests
/// elsewhere, on the device two buckets. (As the optimizer step of ZeRO-Infinity: Rajbhandari et al., arXiv
/// 2104.07857.)
class TierSweep {
 public:
  /// `place`: host or device. `state`, which has tiers, outlives this.
  TierSweep(const FlatState& state, Tier place);
  /// The trained buckets of which this rank has something.
  static std::vector<const Bucket*> trained_buckets(const FlatLayout& layout);
  ~TierSweep();
  TierSweep(const TierSweep&) = delete;
  TierSweep& operator=(const TierSweep&) = delete;

  struct Source {
    FlatMemory* flat = nullptr;
    std::function<at::Tensor(const Bucket&)> on_device{};  ///< instead of `flat`: a tensor on the device
    bool is_read = true;
    bool is_written = false;
    /// If not, it is not part of the sweep, which has its memory ready for another one.
    bool is_used() const noexcept { return is_read || is_written; }
    /// On the host: it is written with what the work leaves in this other source, of the same dtype, and the work does
    /// not see it. -1: none.
    int copy_of = -1;
  };
  /// Elements `begin`, .. `begin` + `count` of a bucket, counted from Bucket::sharded_offset; a tensor for each source,
  /// undefined where a source is not used, or has no memory for the bucket.
  struct Part {
    const Bucket& bucket;
    int64_t begin;
    int64_t count;
    std::span<const at::Tensor> tensors;
  };
  using Work = std::function<void(const Part&)>;

  /// Starts to call `work` for all parts of `buckets`, in order, after earlier sweeps. Until a bucket is done, its flat
  /// buffers are in use (FlatMemory::set_use). All calls have the same kinds of sources, of which each may use some.
  void start(std::span<const Bucket* const> buckets, const std::vector<Source>& sources, Work work);
  /// Waits for what has started; throws its error.
  void finish();

 private:
  struct Run;
  void run_on_device(std::span<const Bucket* const> buckets, const std::vector<Source>& sources, const Work& work);
  void reserve(const std::vector<Source>& sources);

  Tiers& tiers_;
  Tier place_;
  int64_t largest_ = 0;                           ///< elements of the largest trained bucket
  std::vector<std::vector<at::Tensor>> staging_;  ///< by set and source, in host memory; undefined where none is needed
  std::vector<Event> started_;                    ///< by bucket, and of the whole
  std::vector<at::Tensor> given_;                 ///< by Source::on_device; kept until finish(), which frees them at a
                                                  ///< time that does not depend on the other thread
};

}  // namespace caravan
