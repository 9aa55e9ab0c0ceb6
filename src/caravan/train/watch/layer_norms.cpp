#include "caravan/train/watch/layer_norms.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/linalg_vector_norm.h>

#include "caravan/comm/tensor.h"
#include "caravan/formats/checkpoint/checkpoint.h"

namespace caravan {
namespace {

/// "blocks.3" of "blocks.3.mlp.up.weight", else the name up to its first dot.
std::string layer_of(const std::string& parameter) {
  const size_t first = parameter.find('.');
  if (parameter.starts_with("blocks.")) return parameter.substr(0, parameter.find('.', first + 1));
  return parameter.substr(0, first);
}

double squares_of(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return 0;
  const double norm = at::linalg_vector_norm(tensor, 2, {}, /*keepdim=*/false, at::kDouble).item<double>();
  return norm * norm;
}

}  // namespace

LayerNormsOfStep::LayerNormsOfStep(Engine& engine) : engine_(engine) {
  for (const Parameter* parameter : engine.model().parameters()) {
    if (!parameter->requires_grad()) continue;
    const std::string layer = layer_of(parameter->name());
    const auto known = std::ranges::find(layers_, layer);
    const auto index = static_cast<size_t>(known - layers_.begin());
    if (known == layers_.end()) layers_.push_back(layer);
    const CheckpointPiece piece =
        checkpoint_piece(parameter->name(), *parameter, parameter->sharded().detach(), engine.mesh());
    pieces_.push_back({parameter, index, piece.replica == 0});
  }
}

void LayerNormsOfStep::before_update(double gradient_scale) {
  const at::NoGradGuard no_grad;
  const FlatState& state = engine_.state();
  sums_.assign(3 * layers_.size(), 0);
  for (Piece& piece : pieces_) {
    if (!piece.counts) continue;
    piece.before = state.layout.read(state.values, *piece.parameter).clone();
    sums_[3 * piece.layer] += squares_of(piece.before);
    sums_[3 * piece.layer + 1] +=
        squares_of(state.layout.read(state.gradients, *piece.parameter)) / (gradient_scale * gradient_scale);
  }
}

std::vector<LayerNorms> LayerNormsOfStep::after_update() {
  const at::NoGradGuard no_grad;
  const FlatState& state = engine_.state();
  for (Piece& piece : pieces_) {
    if (!piece.counts) continue;
    sums_[3 * piece.layer + 2] +=
        squares_of(std::exchange(piece.before, {}).sub_(state.layout.read(state.values, *piece.parameter)));
  }
  const at::Tensor sums = at::from_blob(sums_.data(), {static_cast<int64_t>(sums_.size())}, at::kDouble);
  all_reduce_async(engine_.mesh().world(), sums, sums, ReduceOp::sum, "norms of layers").wait();
  std::vector<LayerNorms> norms;
  for (size_t i = 0; i < layers_.size(); ++i) {
    norms.push_back({layers_[i], std::sqrt(sums_[3 * i]), std::sqrt(sums_[3 * i + 1]), std::sqrt(sums_[3 * i + 2])});
  }
  return norms;
}

}  // namespace caravan
