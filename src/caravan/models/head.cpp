#include "caravan/models/head.h"

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/nn/linear.h"
#include "caravan/nn/norm.h"
#include "caravan/nn/ops.h"
#include "caravan/nn/product/product.h"

namespace caravan {

at::Tensor Logits::forward(const at::Tensor& input, const ForwardContext& context) {
  static const OpType kType{"bsf,vf->bsv", "", {{0, 1}}};
  if (tiles_ != nullptr) return soft_capped(linear(input, *tiles_, nullptr, weight_.name(), context), cap_);
  at::Tensor logits = soft_capped(linear(input, weight_), cap_);
  record_layout(context, kType, logits, {input, weight_}, name());
  return logits;
}

void Logits::use_tiles(const Tiles& tiles) {
  release_parameter(weight_);
  tiles_ = &tiles;
}

Head::Head(const ModelConfig& config, Parameter* tied)
    : norm_(register_module<Norm>("norm", config, config.width)),
      weight_(tied != nullptr ? share_parameter(*tied)
                              : register_parameter("weight", {.shape = {config.vocabulary, config.width},
                                                              .init = {Init::Kind::normal, kInitStd},
                                                              .decays = true})),
      logits_(register_module<Logits>("logits", weight_, config.logits_cap)),
      loss_(register_module<CrossEntropy>("loss", weight_, config.logits_cap)) {}

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
  const at::Tensor x = norm_(inputs[0], context);
  if (inputs.size() == 2) return loss_.run({x, inputs[1]}, context);
  return {logits_(x, context)};
}

}  // namespace caravan
