#pragma once

#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>

#include "caravan/engine/flat/flat_memory.h"
#include "caravan/engine/strategy.h"
#include "caravan/redistribute/flat.h"

namespace caravan {

/// One parameter in the flat buffers of its model.
struct Slot {
  Parameter* parameter = nullptr;
  int bucket = 0;
  std::vector<int64_t> sharded_shape{};  ///< of the local piece
  std::vector<int64_t> unsharded_shape{};
  int64_t sharded_offset = 0;    ///< in elements, in the flat buffers of the whole model
  int64_t unsharded_offset = 0;  ///< in the unsharded buffer of its bucket
  int64_t sharded_count() const noexcept;
  int64_t unsharded_count() const noexcept;
};

/// Parameters of one group with the same moves between sharded and unsharded parameter: a range of the flat buffers
/// that is moved as one.
struct Bucket {
  int index = 0;
  int group = 0;
  bool is_trained = true;
  size_t first_slot = 0;
  size_t num_slots = 0;
  int64_t sharded_offset = 0;
  int64_t sharded_count = 0;
  int64_t unsharded_count = 0;
  int64_t own_offset = 0;            ///< where this rank's sharded part begins in an unsharded buffer
  bool keeps_leaf = false;           ///< gathered, and keeps its memory: see UnshardedMemory, Strategy::keeps_frozen
  bool keeps_version = false;        ///< the kept unsharded buffer is separate from the values:
                                     ///< UnshardedMemory::versions
  bool is_inside_unsharded = false;  ///< the values are this rank's part of the unsharded buffer
  bool is_fetched = false;           ///< its parameters rest outside of the device, and come before use
  bool is_offloaded = false;         ///< some of its state rests outside of the device
  bool gradient_is_away = false;     ///< its reduced gradients rest outside of the device
  bool keeps_gradient = false;       ///< see Strategy::keeps_gradients: sharded gradients are this rank's part of the
                                     ///< sums
  std::vector<FlatCell> fill{};      ///< sharded -> unsharded, without cells that move nothing
  std::vector<FlatCell> reduce{};    ///< unsharded gradient -> sharded gradient: {debt axes, from, to}
  int64_t slot_count = 0;            ///< of a chunk: elements of its slot
  int64_t whole_count = 0;           ///< of a chunk: elements of transient unsharded buffers, at least unsharded_count
  /// The unsharded parameter is the sharded tensor, or a copy of it in another dtype.
  bool is_in_place() const noexcept { return fill.empty() && !is_fetched; }
  /// Whether the gradient is reduced in place.
  bool reduces_in_place() const noexcept;
  /// Whether one gather lasts as long as the values do: optimizers do not change them.
  bool stays_gathered() const noexcept { return !is_trained && keeps_leaf && !keeps_version; }
  /// Whether the sums of a step keep their memory and are reduced in place once.
  bool stays() const noexcept { return keeps_gradient || reduces_in_place(); }
  /// Whether values, their copies or gradients are outside the common buffers.
  bool is_apart() const noexcept { return keeps_leaf || keeps_gradient || is_offloaded; }
};

/// Offsets of the pieces of a model's parameters in one flat buffer; values, gradients and each optimizer moment use
/// the same offsets. Ordered by group, in reverse forward order, approximately the order in which backward completes
/// gradients; parameters shared by several units come last. Trained parameters come first, and only they have gradients
/// and moments. Built from layouts: no parameter needs memory.
class FlatLayout {
 public:
  /// Offsets of buckets, and of parameters in unsharded buffers, are multiples of this many elements: 64 bytes in bf16,
  /// 128 in fp32. The gaps stay zero in every buffer.
  static constexpr int64_t kAlignment = 32;
  /// `count` rounded up to kAlignment.
  static constexpr int64_t aligned(int64_t count) noexcept {
    return (count + kAlignment - 1) / kAlignment * kAlignment;
  }

  /// A contiguous part of the buffers that the optimizer treats alike.
  struct Range {
    int64_t offset = 0;
    int64_t count = 0;
    bool decays = true;
    UpdateRule rule{};
  };

  FlatLayout() = default;
  /// Throws LayoutError, naming parameter and axis, if a sharded parameter is neither I nor S or the unsharded one does
  /// not follow from it, or if the shards of a group are not cut at rows (shard_at_rows).
  FlatLayout(const Strategy& strategy, const Mesh& mesh);

  const Units& units() const noexcept { return units_; }
  const std::vector<Slot>& slots() const noexcept { return slots_; }
  const std::vector<Bucket>& buckets() const noexcept { return buckets_; }
  const std::vector<Range>& ranges() const noexcept { return ranges_; }
  bool has(const Parameter& parameter) const { return index_.contains(&parameter); }
  const Slot& slot(const Parameter& parameter) const { return slots_[index_.at(&parameter)]; }
  size_t index(const Parameter& parameter) const { return index_.at(&parameter); }

  int64_t count() const noexcept { return count_; }  ///< number of elements of the values
  int64_t trained_count() const noexcept {
    return trained_count_;
  }  ///< number of elements of gradients and moments:
     ///< the first ones
  /// The local piece of `parameter` in a flat buffer, in its sharded shape.
  at::Tensor view(const at::Tensor& flat, const Parameter& parameter) const;
  at::Tensor view(const FlatMemory& flat, const Parameter& parameter) const;
  /// The same wherever `flat` rests: a copy if that is on disk.
  at::Tensor read(const FlatMemory& flat, const Parameter& parameter) const;
  void write(const FlatMemory& flat, const Parameter& parameter, const at::Tensor& from) const;

 private:
  void place_bucket(const std::vector<Parameter*>& parameters, int group, const Strategy& strategy, const Mesh& mesh);
  void place_chunk(Bucket& bucket, const Strategy& strategy);
  void add_range(Range range);

  Units units_;
  std::vector<Slot> slots_;
  std::vector<Bucket> buckets_;
  std::vector<Range> ranges_;
  std::unordered_map<const Parameter*, size_t> index_;
  int64_t count_ = 0;
  int64_t trained_count_ = 0;
  int run_ = 0;            ///< of buckets that are contiguous in memory: ranges do not cross runs
  int run_of_range_ = -1;  ///< of the last range; -1: none
};

/// A model's values and gradients on this rank, flat.
struct FlatState {
  FlatLayout layout;
  FlatMemory values{};     ///< every sharded tensor is a view of it; fp32 (fp64 for fp64 parameters)
  FlatMemory gradients{};  ///< of the trained parameters; of Strategy::gradient_dtype
  /// By bucket, in the unsharded layout, zero in the gaps; undefined where they are transient.
  std::vector<at::Tensor> kept_leaves{};
  std::vector<at::Tensor> kept_sums{};
  std::vector<MeshAxis> shared_axes{};  ///< axes whose ranks read each other's kept buffers in place
  std::string apart_axis{};             ///< see Strategy
  std::string pipeline_axis{};          ///< see Strategy
  std::optional<Mesh> mesh{};           ///< of the ranks that hold the rest of the model; none before allocate()
  int64_t parameter_bytes = 0;          ///< bytes of values, kept buffers and copies; of a shared buffer this rank's
                                        ///< part
  int64_t gradient_bytes = 0;
  /// The gradients are memory of this process alone, and nothing reads them between the begin of a step and its
  /// backward: see GradientLoan.
  bool lends_gradients = false;

  std::shared_ptr<Tiers> tiers{};  ///< see Strategy
  Tier optimizer_tier = Tier::device;
  std::optional<int64_t> delay_after{};
  /// Zeros for the trained parameters, where the optimizer's state rests.
  FlatMemory zeros_like_trained() const;

  /// Allocates all memory. Every rank of `mesh` calls it.
  void allocate(const Strategy& strategy, const Mesh& mesh, at::ScalarType dtype, at::Device device);

  /// An Optimizer of this library updates the values, which torch's version counters reflect. torch::optim bypasses the
  /// counters.
  bool is_versioned = false;
  /// If is_versioned, changes whenever values are written, through this buffer or any sharded tensor.
  int64_t version() const;
  /// Call it after writes through plain pointers: reading a checkpoint, a fused kernel.
  void bump_version() const;
  mutable int64_t num_writes = 0;  ///< to values on disk

  /// The values in the unsharded dtype, or where the unsharded parameters are filled from, if that is another dtype or
  /// tier than that of the values and the unsharded parameters are copies, kept or fetched.
  FlatMemory copies{};
  /// What the unsharded parameters of a bucket are filled from.
  const FlatMemory& source(const Bucket& bucket) const { return copies.has(bucket.sharded_offset) ? copies : values; }
  /// The version of the values that the copies of trained and of frozen parameters were made from. An Optimizer writes
  /// trained values only, so frozen copies outlast its steps; it may write the trained copies with the values.
  struct CopiedVersions {
    int64_t trained = -1;
    int64_t frozen = -1;
    /// The version that a delayed update has made: trained copies lack this update, and no other.
    int64_t lagging = -1;
  };
  CopiedVersions copied_versions{};
  bool has_copied(bool is_trained) const {
    const int64_t copied = is_trained ? copied_versions.trained : copied_versions.frozen;
    return is_versioned && (!values.is_meta() || tiers != nullptr) && copied == version();
  }
  /// Whether the trained copies lack the last update, which is delayed.
  bool lags() const { return delay_after && copied_versions.lagging == version(); }
};

}  // namespace caravan
