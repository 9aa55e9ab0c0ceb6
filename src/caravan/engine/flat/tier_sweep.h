#pragma once

#include <functional>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "caravan/engine/flat/flat.h"

namespace caravan {

/// Goes over flat buffers of a model that rest on several tiers, and has their elements together in one place: on the
/// host, part after part, or on the device, bucket after bucket. What comes next is read, and what was written is
/// stored, while the caller works. On the host it holds three parts of what rests elsewhere, on the device two buckets.
/// (As the optimizer step of ZeRO-Infinity: Rajbhandari et al., arXiv 2104.07857.)
class TierSweep {
 public:
  /// `place`: host or device. `tiers` outlives this.
  TierSweep(Tiers& tiers, Tier place) : tiers_(tiers), place_(place) {}

  struct Source {
    const FlatMemory* flat = nullptr;
    std::function<at::Tensor(const Bucket&)> on_device{};  ///< instead of `flat`: a tensor on the device
    bool is_read = true;
    bool is_written = false;
  };
  /// Elements `begin`, .. `begin` + `count` of a bucket, counted from Bucket::sharded_offset; a tensor for each source,
  /// undefined where a source has no memory for the bucket.
  struct Part {
    const Bucket& bucket;
    int64_t begin;
    int64_t count;
    std::span<const at::Tensor> tensors;
  };
  using Work = std::function<void(const Part&)>;

  /// Calls `work` for all parts of `buckets`, in order.
  void run(std::span<const Bucket* const> buckets, const std::vector<Source>& sources, const Work& work);

 private:
  struct Chunk {
    const Bucket* bucket;
    int64_t begin;
    int64_t count;
  };
  struct Buffers {
    std::vector<at::Tensor> staging{};  ///< by source, in host memory; undefined where none is needed
    std::vector<at::Tensor> tensors{};  ///< of the part
    std::vector<Event> reads{}, writes{};
  };
  void run_on_host(std::span<const Bucket* const> buckets, const std::vector<Source>& sources, const Work& work);
  void run_on_device(std::span<const Bucket* const> buckets, const std::vector<Source>& sources, const Work& work);
  void start(const Chunk& chunk, const std::vector<Source>& sources, Buffers& buffers);
  void finish(const Chunk& chunk, const std::vector<Source>& sources, Buffers& buffers);
  at::Tensor staging(Buffers& buffers, size_t source, int64_t count, const at::TensorOptions& options);

  Tiers& tiers_;
  Tier place_;
  std::vector<Buffers> sets_;
};

}  // namespace caravan
