#include "caravan/engine/model_buffers.h"

#include <algorithm>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include "caravan/base/error.h"
#include "caravan/redistribute/flat.h"

namespace caravan {

ModelBuffers::ModelBuffers(Module& model, const Strategy& strategy, const Mesh& mesh)
    : axes_(data_axes(strategy, mesh)) {
  if (strategy.buffers == Buffers::local || axes_.empty()) return;
  for (const auto& [name, buffer] : model.buffers()) {
    if (!buffer.defined() || buffer.numel() == 0) continue;
    auto set = std::ranges::find_if(sets_, [&, &one = buffer](const Set& other) {
      return other.buffers.front().scalar_type() == one.scalar_type();
    });
    if (set == sets_.end()) set = sets_.insert(sets_.end(), Set{});
    set->buffers.push_back(buffer);  // the module's own: its memory may be exchanged later
  }
  for (Set& set : sets_) {
    int64_t count = 0;
    for (const at::Tensor& buffer : set.buffers) count += buffer.numel();
    set.flat = at::empty({count}, set.buffers.front().options());
    set.is_averaged = strategy.buffers == Buffers::average && set.flat.is_floating_point();
  }
}

void ModelBuffers::collect(const Set& set) const {
  int64_t offset = 0;
  for (const at::Tensor& buffer : set.buffers) {
    if (buffer.scalar_type() != set.flat.scalar_type() || offset + buffer.numel() > set.flat.numel()) {
      throw UsageError({"buffers", "", "a buffer of the module has another dtype or shape than when it was wrapped", "",
                        "convert the module before it is wrapped"});
    }
    set.flat.narrow(0, offset, buffer.numel()).view(buffer.sizes()).copy_(buffer);
    offset += buffer.numel();
  }
}

void ModelBuffers::spread(const Set& set) const {
  int64_t offset = 0;
  for (const at::Tensor& buffer : set.buffers) {
    buffer.copy_(set.flat.narrow(0, offset, buffer.numel()).view(buffer.sizes()));
    offset += buffer.numel();
  }
}

TransferStages::Stage ModelBuffers::stage_of(const Set& set, const MeshAxis& axis, int source) const {
  if (set.is_averaged) {
    return [cell = FlatCell{axis, Partial{}, Invariant{}}, flat = set.flat] {
      return caravan::start(cell, flat, flat, "buffers");
    };
  }
  return [source, axis, flat = set.flat] { return start_copy_from(source, flat, axis, "buffers"); };
}

void ModelBuffers::start(TransferQueue& transfers, const Attendance& attendance) {
  const at::NoGradGuard no_grad;
  for (const Set& set : sets_) {
    collect(set);
    if (set.is_averaged && !attendance.is_here) set.flat.zero_();
    TransferStages stages;
    for (size_t i = 0; i < axes_.size(); ++i) stages.add(stage_of(set, axes_[i], attendance.first[i]));
    stages.add_local([this, &set, num = attendance.num_here] {
      const at::NoGradGuard no_grad;
      if (set.is_averaged) set.flat.div_(num);
      spread(set);
    });
    transfers.add(std::move(stages));
  }
}

}  // namespace caravan
