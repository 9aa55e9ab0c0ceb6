#pragma once

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
  int64_t sharded_offset = 0;    ///< in elements, in the buffers of the whole model
  int64_t unsharded_offset = 0;  ///< in the leaf buffer of its bucket
  int64_t sharded_count() const noexcept;
  int64_t unsharded_count() const noexcept;
};

/// Parameters of one group that take the same way between rest and leaf: a range of the flat buffers that is moved as
/// one.
struct Bucket {
  int index = 0;
  int group = 0;
  bool is_trained = true;
  size_t first_slot = 0;
  size_t num_slots = 0;
  int64_t sharded_offset = 0;
  int64_t sharded_count = 0;
  int64_t unsharded_count = 0;
  int64_t own_offset = 0;            ///< in a leaf buffer: where the part that rests here begins
  bool keeps_leaf = false;           ///< gathered, and keeps its memory: see UnshardedMemory
  bool keeps_version = false;        ///< the kept leaf is not the memory of the values: UnshardedMemory::versions
  bool is_inside_unsharded = false;  ///< the values are this rank's part of the leaf buffer
  bool keeps_gradient = false;       ///< see Strategy::keeps_gradients: at rest they are this rank's part of the sums
  std::vector<FlatCell> fill{};      ///< rest -> leaf, without the cells that move nothing
  std::vector<FlatCell> reduce{};    ///< gradient of the leaf -> at rest: {debt axes, from, to}
  /// The leaf is the tensor at rest, or a copy in another dtype of the same elements.
  bool is_in_place() const noexcept { return fill.empty(); }
  /// The gradient is reduced where it lies.
  bool reduces_in_place() const noexcept;
  /// The sums of a step stay where they are, and are reduced there once.
  bool stays() const noexcept { return keeps_gradient || reduces_in_place(); }
  /// Values, their copies or gradients are not in the common buffers.
  bool is_apart() const noexcept { return keeps_leaf || keeps_gradient; }
};

/// Where the pieces of a model's parameters lie in one flat buffer: values, gradients and each optimizer moment use the
/// same offsets. By group, in the reverse of forward order, which is about the order in which backward completes
/// gradients; parameters that several units share last. Trained parameters come first, and only they have gradients and
/// moments. Built from layouts: no parameter needs memory.
class FlatLayout {
 public:
  /// Offsets of buckets, and of parameters in leaf buffers, are multiples of this many elements: 64 bytes in bf16, 128
  /// in fp32. The gaps stay zero in every buffer.
  static constexpr int64_t kAlignment = 32;
  /// `count` rounded up to kAlignment.
  static constexpr int64_t aligned(int64_t count) noexcept {
    return (count + kAlignment - 1) / kAlignment * kAlignment;
  }

  /// A stretch of the buffers that the optimizer treats alike.
  struct Range {
    int64_t offset = 0;
    int64_t count = 0;
    bool decays = true;
  };

  FlatLayout() = default;
  /// Throws LayoutError, naming parameter and axis, if one neither rests in I or S nor has a leaf that follows from it,
  /// or if the shards of a group are not cut at rows (shard_at_rows).
  FlatLayout(const Strategy& strategy, const Mesh& mesh);

  const Units& units() const noexcept { return units_; }
  const std::vector<Slot>& slots() const noexcept { return slots_; }
  const std::vector<Bucket>& buckets() const noexcept { return buckets_; }
  const std::vector<Range>& ranges() const noexcept { return ranges_; }
  bool has(const Parameter& parameter) const { return index_.contains(&parameter); }
  const Slot& slot(const Parameter& parameter) const { return slots_[index_.at(&parameter)]; }
  size_t index(const Parameter& parameter) const { return index_.at(&parameter); }

  int64_t count() const noexcept { return count_; }                  ///< elements of the values
  int64_t trained_count() const noexcept { return trained_count_; }  ///< of gradients and moments: the first of them
  /// The local piece of `parameter` in a flat buffer, in its shape at rest.
  at::Tensor view(const at::Tensor& flat, const Parameter& parameter) const;
  at::Tensor view(const FlatMemory& flat, const Parameter& parameter) const;

 private:
  void place_bucket(const std::vector<Parameter*>& parameters, int group, const Strategy& strategy, const Mesh& mesh);
  void add_range(Range range);

  Units units_;
  std::vector<Slot> slots_;
  std::vector<Bucket> buckets_;
  std::vector<Range> ranges_;
  std::unordered_map<const Parameter*, size_t> index_;
  int64_t count_ = 0;
  int64_t trained_count_ = 0;
  int run_ = 0;            ///< of buckets that lie in memory one after another: ranges do not cross runs
  int run_of_range_ = -1;  ///< of the last range; -1: none
};

/// A model's values and gradients on this rank, flat.
struct FlatState {
  FlatLayout layout;
  FlatMemory values{};     ///< every rest tensor is a view of it; fp32 (fp64 for fp64 parameters)
  FlatMemory gradients{};  ///< of the trained parameters; of Strategy::gradient_dtype
  /// By bucket, in the layout of the leaves, zero in the gaps; undefined where they come and go.
  std::vector<at::Tensor> kept_leaves{};
  std::vector<at::Tensor> kept_sums{};
  std::vector<MeshAxis> shared_axes{};  ///< whose ranks read each other's kept leaves in place
  std::string apart_axis{};             ///< see Strategy
  int64_t parameter_bytes = 0;          ///< values, kept leaves and copies; of a shared buffer this rank's part
  int64_t gradient_bytes = 0;

  /// Makes the memory of all. Every rank of `mesh` calls it.
  void allocate(const Strategy& strategy, const Mesh& mesh, at::ScalarType dtype, at::Device device);

  /// An Optimizer of this library updates the values, and torch's version counters tell it. torch::optim writes past
  /// them.
  bool is_versioned = false;
  /// Changes whenever values are written, through this buffer or through any tensor at rest, if is_versioned.
  int64_t version() const;
  /// For what writes values through plain pointers: a checkpoint that is read, a fused kernel.
  void bump_version() const;

  /// The values in the dtype of the leaves, where that is another and the leaves are at rest or kept.
  FlatMemory copies{};
  /// The version of the values that the copies of trained and of frozen parameters were made of. An Optimizer writes
  /// trained values alone, so frozen copies outlast its steps; it may write the trained copies with the values.
  struct CopiedVersions {
    int64_t trained = -1;
    int64_t frozen = -1;
  };
  CopiedVersions copied_versions{};
  bool has_copied(bool is_trained) const {
    const int64_t copied = is_trained ? copied_versions.trained : copied_versions.frozen;
    return is_versioned && !values.is_meta() && copied == version();
  }
};

}  // namespace caravan
