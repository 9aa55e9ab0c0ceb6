#include "caravan/nn/experts/moe.h"

#include "caravan/nn/ops.h"

namespace caravan {
namespace {

/// The config of the shared expert. Dropout comes after it is added.
ModelConfig shared_config(const ModelConfig& config) {
  ModelConfig shared = config;
  shared.dropout = 0;
  return shared;
}

/// x times the sigmoid of its score [batch, sequence, 1].
at::Tensor times_gate(const at::Tensor& x, const at::Tensor& score, const ForwardContext& context,
                      std::string_view what) {
  static const OpType kType{"bsf,bso->bsf", "o", {{0}}};
  at::Tensor result = x * score.sigmoid();
  record_layout(context, kType, result, {x, score}, what);
  return result;
}

}  // namespace

Moe::Moe(const ModelConfig& config)
    : router_(register_module<Router>("router", config)),
      experts_(register_module<Experts>("experts", config)),
      shared_(config.moe.has_shared() ? &register_module<Mlp>("shared", shared_config(config), config.moe.shared_hidden)
                                      : nullptr),
      shared_gate_(
          config.moe.shared_gate
              ? &register_module<Linear>("shared_gate", Linear::Options{.in = config.width, .out = 1, .bias = false})
              : nullptr),
      dropout_(register_module<Dropout>("dropout", branch_dropout(config))) {}

at::Tensor Moe::forward(const at::Tensor& input, const ForwardContext& context) {
  const Tensors routed = router_.run({input}, context);
  at::Tensor y = experts_.run({input, routed[0], routed[1]}, context).front();
  if (shared_ != nullptr) {
    at::Tensor shared = (*shared_)(input, context);
    if (shared_gate_ != nullptr) shared = times_gate(shared, (*shared_gate_)(input, context), context, name());
    y = add(y, shared, context, name());
  }
  return dropout_(y, context);
}

}  // namespace caravan
