#include <algorithm>
#include <functional>

#include <ATen/ops/zeros.h>

#include "caravan/base/memory/memory_counter.h"
#include "caravan/comm/tensor.h"
#include "caravan/engine/flat/flat.h"

namespace caravan {
namespace {

/// Allocates the pieces of a flat buffer: those inside other buffers, and one for each run of buckets between them.
class Pieces {
 public:
  using Allocate = std::function<at::Tensor(int64_t count)>;
  /// With `tier` host or disk, what is not inside other buffers rests there, a piece for each bucket. `is_apart`: each
  /// bucket has a piece on the device too.
  Pieces(at::TensorOptions options, Tier tier, std::shared_ptr<Tiers> tiers, MemoryKind kind, bool is_apart,
         Allocate allocate)
      : memory_(options),
        tier_(tier),
        tiers_(std::move(tiers)),
        kind_(kind),
        is_apart_(is_apart),
        allocate_(std::move(allocate)) {}

  void add_own(const Bucket& bucket) {
    if (tier_ != Tier::device) {
      const MemoryKindScope kind(kind_);
      memory_.add(bucket.sharded_offset, bucket.sharded_count, tier_, tiers_);
      return;
    }
    if (is_apart_ || run_offset_ + run_count_ != bucket.sharded_offset) end_run();
    if (run_count_ == 0) run_offset_ = bucket.sharded_offset;
    run_count_ = FlatLayout::aligned(bucket.sharded_offset + bucket.sharded_count) - run_offset_;
  }
  void add_inside(const Bucket& bucket, const at::Tensor& buffer) {
    end_run();
    memory_.add(bucket.sharded_offset, buffer.narrow(0, bucket.own_offset, bucket.sharded_count));
  }
  FlatMemory finish() {
    end_run();
    return std::move(memory_);
  }

 private:
  void end_run() {
    if (run_count_ > 0) memory_.add(run_offset_, allocate_(run_count_));
    run_count_ = 0;
  }

  FlatMemory memory_;
  Tier tier_;
  std::shared_ptr<Tiers> tiers_;
  MemoryKind kind_;
  bool is_apart_;
  Allocate allocate_;
  int64_t run_offset_ = 0;
  int64_t run_count_ = 0;
};

}  // namespace

void FlatState::allocate(const Strategy& strategy, const Mesh& mesh, at::ScalarType dtype, at::Device device) {
  apart_axis = strategy.apart_axis;
  pipeline_axis = strategy.pipeline_axis;
  this->mesh = mesh;
  tiers = strategy.tiers;
  optimizer_tier = strategy.optimizer_tier;
  delay_after = strategy.delay_after;
  const at::ScalarType compute_dtype = strategy.compute_dtype == at::kFloat ? dtype : strategy.compute_dtype;
  const at::ScalarType gradient_dtype = strategy.gradient_dtype == at::kFloat ? dtype : strategy.gradient_dtype;
  // What no peer reads is in memory of this process, whose pages may be huge and can be lent: a model that generates
  // text reads all of it for each token.
  const bool is_alone = mesh.size() == 1 && (device.is_cpu() || device.is_meta());
  const bool is_read_only = device.is_cpu() && std::ranges::all_of(layout.buckets(), [](const Bucket& bucket) {
                              return !bucket.is_trained && bucket.is_in_place();
                            });
  const auto make = [&](int64_t count, at::ScalarType type, int64_t& bytes) {
    const MemoryKindScope kind(&bytes == &gradient_bytes ? MemoryKind::gradients : MemoryKind::parameters);
    bytes += count * static_cast<int64_t>(c10::elementSize(type));
    if (!is_alone && !is_read_only) return allocate_flat(mesh.world(), count, type, device);
    return at::zeros({count}, at::TensorOptions().dtype(type).device(device));
  };
  lends_gradients = is_alone && strategy.lends_gradients && !strategy.is_offloaded();
  const auto make_leaf = [&](const Bucket& bucket) {
    if (strategy.unsharded_memory != UnshardedMemory::shared || bucket.fill.size() != 1) {
      return make(bucket.unsharded_count, compute_dtype, parameter_bytes);
    }
    const FlatCell& cell = bucket.fill.front();
    const auto is_its = [&](const MeshAxis& axis) { return axis.name() == cell.axis.name(); };
    if (std::ranges::none_of(shared_axes, is_its)) shared_axes.push_back(cell.axis);
    const MemoryKindScope kind(MemoryKind::parameters);
    parameter_bytes += bucket.sharded_count * static_cast<int64_t>(c10::elementSize(compute_dtype));
    return allocate_flat_shared(cell.axis.comm(), bucket.unsharded_count, compute_dtype, device);
  };
  const auto of = [&](at::ScalarType type) { return at::TensorOptions().dtype(type).device(device); };
  const Tier values_tier = strategy.values_tier();
  const bool has_one_tier = values_tier == strategy.parameters_tier;
  Pieces all_values(of(dtype), values_tier, tiers, MemoryKind::parameters, /*is_apart=*/false,
                    [&](int64_t count) { return make(count, dtype, parameter_bytes); });
  Pieces all_gradients(of(gradient_dtype), strategy.gradients_tier, tiers, MemoryKind::gradients, /*is_apart=*/false,
                       [&](int64_t count) { return make(count, gradient_dtype, gradient_bytes); });
  // The host writes copies bucket by bucket, and a unit waits for its own.
  Pieces all_copies(of(compute_dtype), strategy.parameters_tier, tiers, MemoryKind::parameters, tiers != nullptr,
                    [&](int64_t count) { return make(count, compute_dtype, parameter_bytes); });
  kept_leaves.resize(layout.buckets().size());
  kept_sums.resize(layout.buckets().size());
  for (const Bucket& bucket : layout.buckets()) {
    const auto index = static_cast<size_t>(bucket.index);
    const bool keeps_sum = bucket.keeps_gradient && !bucket.gradient_is_away;
    if (bucket.keeps_leaf) kept_leaves[index] = make_leaf(bucket);
    if (keeps_sum) kept_sums[index] = make(bucket.unsharded_count, gradient_dtype, gradient_bytes);
    bucket.is_inside_unsharded ? all_values.add_inside(bucket, kept_leaves[index]) : all_values.add_own(bucket);
    if (bucket.is_trained) {
      keeps_sum ? all_gradients.add_inside(bucket, kept_sums[index]) : all_gradients.add_own(bucket);
    }
    if ((compute_dtype == dtype && has_one_tier) || strategy.stashes_weights()) continue;
    if (bucket.keeps_leaf && !bucket.keeps_version) {
      all_copies.add_inside(bucket, kept_leaves[index]);
    } else if (bucket.is_in_place() || bucket.is_fetched || !has_one_tier) {
      all_copies.add_own(bucket);
    }
  }
  values = all_values.finish();
  gradients = all_gradients.finish();
  copies = all_copies.finish();
}

FlatMemory FlatState::zeros_like_trained() const {
  const MemoryKindScope kind(MemoryKind::optimizer);
  if (optimizer_tier == Tier::device) return FlatMemory(at::zeros({layout.trained_count()}, values.options()));
  FlatMemory zeros(values.options());
  for (const Bucket& bucket : layout.buckets()) {
    if (bucket.is_trained) zeros.add(bucket.sharded_offset, bucket.sharded_count, optimizer_tier, tiers);
  }
  return zeros;
}

int64_t FlatState::version() const {
  int64_t version = num_writes + values.version();
  for (const Slot& slot : layout.slots()) version += static_cast<int64_t>(slot.parameter->sharded()._version());
  return version;
}

void FlatState::bump_version() const {
  ++num_writes;
  values.bump_version();
}

}  // namespace caravan
