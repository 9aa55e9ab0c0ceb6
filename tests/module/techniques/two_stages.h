#pragma once

#include <algorithm>
#include <map>
#include <string>

#include "caravan/module/module.h"
#include "caravan/redistribute/redistribute.h"

namespace caravan::testing {

/// Test-only technique: the first `cut` blocks of a model run on coordinate 0 of an axis of two, the others on
/// coordinate 1. A parameter rests on its stage; one that both stages use rests invariant.
class TwoStages {
 public:
  TwoStages(Module& model, size_t cut) : blocks_(model.blocks()), cut_(cut) {}

  std::map<std::string, Layout> layouts(const std::string& axis) const {
    std::map<std::string, Layout> layouts;
    for (size_t i = 0; i < blocks_.size(); ++i) {
      for (const Parameter* parameter : blocks_[i]->parameters()) {
        const Shard on_stage{.dim = 0, .owner = i < cut_ ? 0 : 1, .rows = parameter->global_shape()[0]};
        const auto [entry, is_new] = layouts.emplace(parameter->name(), Layout{{axis, on_stage}});
        if (!is_new) entry->second = Layout{{axis, Invariant{}}};
      }
    }
    return layouts;
  }

  /// The loss, P over the stages; `width` is that of the stream.
  at::Tensor run(const at::Tensor& ids, const at::Tensor& labels, int64_t width, const ForwardContext& context,
                 const MeshAxis& axis) {
    const bool is_first = axis.coord() == 0;
    for (Module* block : blocks_) {
      for (Parameter* parameter : block->parameters()) {
        if (!parameter->rest_layout()[axis.name()].is_invariant()) continue;  // different uses: the debt is paid
        parameter->set_compute(redistribute(parameter->rest(), parameter->rest_layout(), axis, Replicate{}));
      }
    }
    const auto options = blocks_[0]->parameters()[0]->rest().options();
    Tensors stream{is_first ? ids : at::empty({0, ids.size(1), width}, options).requires_grad_()};
    for (size_t i = 0; i < cut_ && is_first; ++i) stream = blocks_[i]->run(stream, context);
    const Shard here{.dim = 0, .owner = 0, .rows = ids.size(0)};
    const Shard there{.dim = 0, .owner = 1, .rows = ids.size(0)};
    stream[0] = redistribute(stream[0], {{axis.name(), here}}, axis, there, "stream");
    if (is_first) return stream[0].sum();  // of no rows: 0, but its backward receives the gradient
    stream.push_back(labels);
    for (size_t i = cut_; i < blocks_.size(); ++i) stream = blocks_[i]->run(stream, context);
    return stream[0];
  }

 private:
  std::vector<Module*> blocks_;
  size_t cut_;
};

}  // namespace caravan::testing
