#include <algorithm>

#include "caravan/base/error.h"
#include "caravan/base/trace/path_log.h"
#include "caravan/engine/gradients/gradient_sums.h"
#include "caravan/module/mixed_add.h"

namespace caravan {
namespace {

bool take_the_same_way(const Bucket& a, const Bucket& b) {
  return std::equal(a.reduce.begin(), a.reduce.end(), b.reduce.begin(), b.reduce.end(),
                    [](const FlatCell& x, const FlatCell& y) { return x.axis == y.axis && x.to == y.to; });
}

}  // namespace

void GradientSums::fold(const Bucket& bucket) {
  OfBucket& own = buckets_[static_cast<size_t>(bucket.index)];
  count_path(own.is_folded ? "gradients added to a sum" : "gradients copied to a sum");
  const at::Tensor sum = kept(bucket);
  own.is_folded ? add_mixed(sum, own.sums) : void(sum.copy_(own.sums));
  own.is_folded = true;
  own.sums = at::Tensor();
}

at::Tensor GradientSums::on_wire(const at::Tensor& values) const {
  if (values.scalar_type() == wire_dtype_) return values;
  return pool_.take(values.numel(), wire_dtype_).copy_(values);
}

TransferQueue::Ticket GradientSums::start_reduction(const Bucket& bucket, bool is_last) {
  OfBucket& own = buckets_[static_cast<size_t>(bucket.index)];
  const at::Tensor sharded = state_.gradients.narrow(bucket.sharded_offset, bucket.sharded_count);
  // With Accumulate::sharded, later reductions add to the result of the first one of a step, which overwrites.
  const bool adds = own.is_reduced;
  count_path(adds ? "gradients added to shards" : "gradients written to shards");
  const bool is_apart = adds || sharded.scalar_type() != wire_dtype_;
  const at::Tensor target = is_apart ? pool_.take(bucket.sharded_count, wire_dtype_) : sharded;
  const at::Tensor sums = on_wire(bucket.stays() && rounds_ ? kept(bucket) : sums_of(bucket));
  own.sums = at::Tensor();  // now owned by the transfer
  TransferStages stages;
  add_scatters(stages, bucket, sums, target);
  if (is_apart) {
    stages.add_local([sharded, target, adds] { adds ? add_mixed(sharded, target) : void(sharded.copy_(target)); });
  }
  if (is_last) {  // sharded sums are reduced over replicas once a step
    for (auto cell = after_scatters(bucket); cell != bucket.reduce.end(); ++cell) {
      reduce_sharded(stages, *cell, bucket, sharded);
    }
  }
  return transfers_.add(std::move(stages));
}

std::vector<FlatCell>::const_iterator GradientSums::after_scatters(const Bucket& bucket) {
  return std::find_if(bucket.reduce.rbegin(), bucket.reduce.rend(),
                      [](const FlatCell& cell) { return cell.to.is_shard(); })
      .base();
}

void GradientSums::add_scatters(TransferStages& stages, const Bucket& bucket, const at::Tensor& sums,
                                const at::Tensor& target) const {
  const std::string& what = state_.layout.units().groups[static_cast<size_t>(bucket.group)].name;
  const auto end = after_scatters(bucket);
  int64_t begin = 0;
  for (auto cell = bucket.reduce.begin(); cell != end; ++cell) {
    if (!cell->to.is_shard()) {
      throw InternalError({strategy_.name, what, "is all-reduced before it is scattered", "", ""});
    }
    const int64_t whole = cell->whole();
    const at::Tensor in = sums.narrow(0, begin, whole);
    begin += cell->before();
    const at::Tensor out = cell + 1 == end ? target : sums.narrow(0, begin, cell->own());
    if (whole > 0) stages.add([cell = *cell, in, out, &what] { return start(cell, in, out, what); });
  }
}

void GradientSums::reduce_sharded(TransferStages& stages, const FlatCell& cell, const Bucket& bucket,
                                  const at::Tensor& sharded) {
  const bool is_cast = sharded.scalar_type() != wire_dtype_;
  const at::Tensor wire = is_cast ? pool_.take(bucket.sharded_count, wire_dtype_) : sharded;
  const std::string& what = state_.layout.units().groups[static_cast<size_t>(bucket.group)].name;
  if (is_cast) stages.add_local([sharded, wire] { wire.copy_(sharded); });
  add_all_reduce(stages, cell, wire, bucket.sharded_offset, what);
  if (is_cast) stages.add_local([sharded, wire] { sharded.copy_(wire); });
}

void GradientSums::add_all_reduce(TransferStages& stages, const FlatCell& cell, const at::Tensor& part, int64_t offset,
                                  const std::string& what) const {
  if (strategy_.hook == nullptr || cell.axis.name() != strategy_.hook_axis) {
    stages.add([cell, part, &what] { return start(cell, part, part, what); });
    return;
  }
  if (part.numel() == 0) return;  // on every rank of the axis: belongs to another stage
  GradientRange range{.axis = cell.axis, .values = part, .offset = offset};
  for (const Slot& slot : state_.layout.slots()) {
    const int64_t begin = slot.sharded_offset - offset;
    if (begin < 0 || begin + slot.sharded_count() > part.numel() || slot.sharded_count() == 0) continue;
    range.pieces.push_back({slot.parameter->name(), begin, slot.sharded_shape});
  }
  strategy_.hook->reduce(range, stages);
}

void GradientSums::add_to_run(const Bucket& bucket) {
  // By the order of buckets, not by offsets: a rank may hold nothing of a bucket in between.
  const bool follows = run_ != nullptr && bucket.index == run_last_ + 1 && take_the_same_way(*run_, bucket);
  if (!follows) start_run();
  if (run_ == nullptr) run_ = &bucket;
  run_last_ = bucket.index;
  run_count_ = bucket.sharded_offset + bucket.sharded_count - run_->sharded_offset;
  const int64_t enough =
      is_first_run_ ? std::min(strategy_.first_bucket_bytes, strategy_.bucket_bytes) : strategy_.bucket_bytes;
  if (run_count_ * static_cast<int64_t>(c10::elementSize(state_.gradients.scalar_type())) >= enough) start_run();
}

void GradientSums::start_run() {
  if (run_ == nullptr) return;
  count_path(is_first_run_ ? "first bucket of gradients" : "later bucket of gradients");
  const at::Tensor range = state_.gradients.narrow(run_->sharded_offset, run_count_);
  const at::Tensor part = run_->reduce.empty() ? range : on_wire(range);
  const std::string& what = state_.layout.units().groups[static_cast<size_t>(run_->group)].name;
  TransferStages stages;
  for (const FlatCell& cell : run_->reduce) add_all_reduce(stages, cell, part, run_->sharded_offset, what);
  if (!part.is_same(range)) stages.add_local([range, part] { range.copy_(part); });
  transfers_.add(std::move(stages));
  run_ = nullptr;
  run_count_ = 0;
  is_first_run_ = false;
}

}  // namespace caravan
