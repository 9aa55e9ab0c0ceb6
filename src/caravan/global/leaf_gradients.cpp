#include "caravan/global/leaf_gradients.h"

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include "caravan/comm/tensor.h"
#include "caravan/global/state.h"
#include "caravan/mesh/fit.h"
#include "caravan/redistribute/flat.h"
#include "caravan/redistribute/redistribute.h"

namespace caravan {
namespace {

struct AfterGradient : torch::autograd::PostAccumulateGradHook {
  void operator()(const torch::autograd::Variable& leaf) override {
    if (PieceMeta* meta = meta_of(leaf)) meta->state->gradients().add(leaf);
  }
  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs&) const override {}
};

/// The next move of each gradient to its parameter's layout.
struct Waiting {
  PieceMeta* gradient;
  const Placed* target;
  AxisMove move;
};

/// Gradients that one collective reduces together: same axis, same kind of move, same dtype.
using GroupKey = std::tuple<std::string, bool, at::ScalarType>;

bool is_groupable(const AxisMove& move, const at::Tensor& piece) {
  if (!move.from.is_partial() || piece.is_complex()) return false;
  return move.to.is_whole() || (move.to.is_shard() && move.to.owner() < 0 && move.to.blocks() == 1);
}

void reduce_all(std::vector<Waiting>& group, const MeshAxis& axis) {
  std::vector<at::Tensor> flat;
  for (const Waiting& each : group) flat.push_back(each.gradient->piece.reshape({-1}));
  const at::Tensor in = at::cat(flat);
  const at::Tensor out = at::empty_like(in);
  start({axis, Partial{}, Replicate{}}, in, out, Call("gradients")).wait();
  int64_t begin = 0;
  for (const Waiting& each : group) {
    at::Tensor& piece = each.gradient->piece;
    const int64_t count = piece.numel();
    piece = out.narrow(0, begin, count).view(piece.sizes());
    each.gradient->is_aliased = false;  // its new memory is its own
    begin += count;
  }
}

void reduce_scatter_all(std::vector<Waiting>& group, const MeshAxis& axis) {
  const int n = axis.size();
  std::vector<at::Tensor> flat;
  std::vector<int64_t> counts(n, 0);
  std::vector<std::vector<int64_t>> rows;
  for (const Waiting& each : group) {
    rows.push_back(rows_of(each.move.to, each.gradient->piece.size(each.move.to.dim()), n));
  }
  for (int coord = 0; coord < n; ++coord) {
    for (size_t i = 0; i < group.size(); ++i) {
      const int dim = group[i].move.to.dim();
      const int64_t begin = std::accumulate(rows[i].begin(), rows[i].begin() + coord, int64_t{0});
      flat.push_back(group[i].gradient->piece.narrow(dim, begin, rows[i][coord]).reshape({-1}));
      counts[coord] += flat.back().numel();
    }
  }
  const at::Tensor in = at::cat(flat);
  const at::Tensor out = at::empty({counts[axis.coord()]}, in.options());
  start({axis, Partial{}, Shard{0}, counts}, in, out, Call("gradients")).wait();
  int64_t begin = 0;
  for (size_t i = 0; i < group.size(); ++i) {
    at::Tensor& piece = group[i].gradient->piece;
    std::vector<int64_t> shape = piece.sizes().vec();
    shape[group[i].move.to.dim()] = rows[i][axis.coord()];
    const int64_t count = std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
    piece = out.narrow(0, begin, count).view(shape);
    group[i].gradient->is_aliased = false;
    begin += count;
  }
}

}  // namespace

void LeafGradients::watch(const at::Tensor& leaf) {
  torch::autograd::impl::set_post_acc_grad_hooks(leaf, std::make_unique<AfterGradient>());
}

void LeafGradients::add(const at::Tensor& leaf) {
  constexpr size_t kMostPasses = 16;  // of more, the first threw, and nobody ends it
  const int pass = torch::autograd::get_current_graph_task_id();
  const auto [found, is_new] = leaves_.try_emplace(pass);
  found->second.push_back(leaf);
  if (!is_new) return;
  if (leaves_.size() > kMostPasses) leaves_.erase(leaves_.begin());
  torch::autograd::Engine::get_default_engine().queue_callback([this, pass] { finish(pass); });
}

void LeafGradients::finish(int pass) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const auto node = leaves_.extract(pass);
  if (node.empty()) return;
  const std::vector<at::Tensor>& leaves = node.mapped();
  std::vector<std::pair<PieceMeta*, const Placed*>> open;
  for (const at::Tensor& leaf : leaves) {
    PieceMeta* gradient = leaf.grad().defined() ? meta_of(leaf.grad()) : nullptr;
    const PieceMeta* own = meta_of(leaf);
    if (gradient == nullptr || own == nullptr) continue;
    // A leaf that was used twice, or whose gradient is shared, comes once.
    const bool is_known = std::ranges::any_of(open, [&](const auto& each) { return each.first == gradient; });
    if (!is_known && gradient->placed != own->placed) open.emplace_back(gradient, own->placed);
  }
  while (!open.empty()) {
    std::map<GroupKey, std::vector<Waiting>> groups;
    std::vector<std::pair<PieceMeta*, const Placed*>> rest;
    for (const auto& [gradient, target] : open) {
      const std::vector<AxisMove> moves = moves_between(gradient->placed->layout, target->layout);
      if (moves.empty()) {
        gradient->placed = target;
      } else if (is_groupable(moves.front(), gradient->piece)) {
        const AxisMove& move = moves.front();
        groups[{move.axis, move.to.is_shard(), gradient->piece.scalar_type()}].push_back({gradient, target, move});
      } else {
        gradient->piece = moved_piece(*gradient, target, "gradient");
        gradient->placed = target;
        gradient->is_aliased = false;
      }
    }
    for (auto& [key, group] : groups) {
      GlobalState& state = *group.front().gradient->state;
      const MeshAxis& axis = state.mesh()[std::get<0>(key)];
      if (axis.size() > 1) std::get<1>(key) ? reduce_scatter_all(group, axis) : reduce_all(group, axis);
      for (const Waiting& each : group) {
        each.gradient->placed = state.intern(each.gradient->placed->layout.moved(each.move.axis, each.move.to));
        rest.emplace_back(each.gradient, each.target);
      }
    }
    open = std::move(rest);
  }
}

}  // namespace caravan
