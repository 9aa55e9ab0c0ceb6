#include "caravan/models/head.h"

#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/nn/init_std.h"
#include "caravan/nn/linear.h"
#include "caravan/nn/norm.h"
#include "caravan/nn/ops.h"
#include "caravan/nn/product/product.h"

namespace caravan {

at::Tensor Logits::forward(const at::Tensor& input, const ForwardContext& context) {
  static const OpType kType{"bsf,vf->bsv", "", {{0, 1}}};
  static const OpType kSum{"bsv,v->bsv", "", {{0}, {1}}};
  if (tiles_ != nullptr) return soft_capped(linear(input, *tiles_, nullptr, weight_.name(), context), cap_);
  at::Tensor logits = soft_capped(linear(input, weight_, bias_), cap_);
  record_layout(context, kType, logits, {input, weight_}, name());
  if (bias_ != nullptr) record_layout(context, kSum, logits, {logits, *bias_}, name());
  return logits;
}

void Logits::use_tiles(const Tiles& tiles) {
  release_parameter(weight_);
  tiles_ = &tiles;
}

namespace {

Linear::Options transform_options(const ModelConfig& config) { return {.in = config.width, .out = config.width}; }

}  // namespace

Head::Head(const ModelConfig& config, Parameter* tied)
    : has_encoder_(config.has_encoder()),
      norms_stream_(config.arch.has_last_norm()),
      pools_(config.has_transform() && config.classes > 0),
      activation_(config.arch.activation),
      scale_(config.arch.scales_head ? 1 / std::sqrt(static_cast<double>(config.width)) : 1),
      transform_(config.has_transform() ? &register_module<Linear>("transform", transform_options(config)) : nullptr),
      norm_(config.has_head_norm() ? &register_module<Norm>("norm", config, config.width) : nullptr),
      dropout_(pools_ || config.arch.drops_output ? &register_module<Dropout>("dropout", config.dropout) : nullptr),
      weight_(tied != nullptr ? share_parameter(*tied)
                              : register_parameter("weight", {.shape = {config.num_outputs(), config.width},
                                                              .init = {Init::Kind::normal, embedding_init_std(config)},
                                                              .decays = true,
                                                              .matrices = 0})),
      bias_(config.has_transform()
                ? &register_parameter("bias", {.shape = {config.num_outputs()}, .init = {}, .decays = false})
                : nullptr),
      logits_(register_module<Logits>("logits", weight_, bias_, config.logits_cap)),
      loss_(register_module<CrossEntropy>("loss", weight_, bias_, config.logits_cap)) {}

std::vector<Tileable::Weight> Head::weights_to_cut() {
  if (bias_ != nullptr) return {};
  return {{&weight_}};
}

std::vector<Module*> Head::cut(const std::vector<std::vector<TileCut>>& cuts, bool follows_trained) {
  for (const auto& cut : cuts) tiles_.add(register_module<Tile>(tile_name(tiles_.size()), cut.front()));
  tiles_.set(release_parameter(weight_), follows_trained);
  logits_.use_tiles(tiles_);
  loss_.use_tiles(tiles_);
  return tiles_.modules();
}

Tensors Head::forward(Tensors inputs, const ForwardContext& context) {
  if (inputs.empty() || inputs.size() > 2) {
    throw InternalError(
        {"head", name(), fmt::format("takes a stream and perhaps labels, got {}", inputs.size()), "", ""});
  }
  const at::Tensor x = hidden(inputs[0], context);
  if (inputs.size() == 1) return {logits_(x, context)};
  at::Tensor& labels = inputs[1];
  const int64_t sources = labels.size(1) - inputs[0].size(1);  // whose labels are in front
  if (has_encoder_ && sources > 0) {
    const at::Tensor all = std::exchange(labels, labels.narrow(1, sources, inputs[0].size(1)));
    if (context.layouts != nullptr)
      context.layouts->set(labels, context.layouts->of(all, name()), "labels of the target");
  }
  return loss_.run({x, labels}, context);
}

at::Tensor Head::states(const at::Tensor& stream, const ForwardContext& context) {
  return norms_stream_ ? (*norm_)(stream, context) : stream;
}

at::Tensor Head::hidden(const at::Tensor& stream, const ForwardContext& context) {
  static const OpType kTanh{"bsf->bsf"};
  at::Tensor x = stream;
  if (pools_ && norm_ != nullptr) x = (*norm_)(x, context);
  if (transform_ != nullptr) x = (*transform_)(x, context);
  if (pools_) {
    const at::Tensor before = std::exchange(x, x.tanh());
    record_layout(context, kTanh, x, {before}, name());
  } else {
    if (transform_ != nullptr) x = activated(activation_, x, context, name());
    if (norm_ != nullptr) x = (*norm_)(x, context);
  }
  if (dropout_ != nullptr) x = (*dropout_)(x, context);
  return scale_ == 1 ? x : scaled(x, scale_, context, name());
}

}  // namespace caravan
