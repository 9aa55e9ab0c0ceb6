#include "caravan/nn/linear.h"

#include <cmath>

#include "caravan/nn/ops.h"
#include "caravan/nn/product/product.h"

namespace caravan {

Linear::Linear(const Options& options)
    : options_(options),
      weight_(register_parameter(
          "weight",
          {.shape = {options.out, options.in}, .init = {Init::Kind::normal, options.init_std}, .decays = true})) {
  if (options.bias) bias_ = &register_parameter("bias", {.shape = {options.out}, .init = {}, .decays = false});
}

double residual_init_std(const ModelConfig& config) {
  return kInitStd / std::sqrt(2 * static_cast<double>(config.layers));
}

at::Tensor Linear::forward(const at::Tensor& input, const ForwardContext& context) {
  static const OpType kProduct{"bsk,nk->bsn", "", {{0, 1}}};
  static const OpType kSum{"bsn,n->bsn", "", {{0}, {1}}};
  if (!tiles_.empty()) {
    return with_adapter(linear(input, tiles_, bias_, weight_.name(), context), input, context);
  }
  at::Tensor y = linear(input, weight_, bias_);
  record_layout(context, kProduct, y, {input, weight_}, name());
  if (bias_ != nullptr) record_layout(context, kSum, y, {y, *bias_}, name());
  return with_adapter(y, input, context);
}

std::vector<Module*> Linear::cut(const std::vector<std::vector<TileCut>>& cuts, bool follows_trained) {
  for (const auto& cut : cuts) tiles_.add(register_module<Tile>(tile_name(tiles_.size()), cut.front()));
  tiles_.set(release_parameter(weight_), follows_trained);
  return tiles_.modules();
}

void Linear::add_adapter(int64_t rank, double scale) {
  adapter_ = &register_module<LoraAdapter>("lora", options_, rank, scale);
}

at::Tensor Linear::with_adapter(const at::Tensor& y, const at::Tensor& input, const ForwardContext& context) {
  return adapter_ == nullptr ? y : add(y, (*adapter_)(input, context), context, name());
}

/// A starts as in PEFT, whose uniform distribution has this deviation, and B at zero, so the output starts at zero.
LoraAdapter::LoraAdapter(const Linear::Options& of, int64_t rank, double scale)
    : scale_(scale),
      a_(register_module<Linear>(
          "a",
          Linear::Options{
              .in = of.in, .out = rank, .bias = false, .init_std = 1 / std::sqrt(3 * static_cast<double>(of.in))})),
      b_(register_module<Linear>("b", Linear::Options{.in = rank, .out = of.out, .bias = false, .init_std = 0})) {}

at::Tensor LoraAdapter::forward(const at::Tensor& input, const ForwardContext& context) {
  static const OpType kScale{"bsr->bsr", "", {{0}}};
  const at::Tensor h = a_(input, context);
  const at::Tensor scaled = h * scale_;
  record_layout(context, kScale, scaled, {h}, name());
  return b_(scaled, context);
}

}  // namespace caravan
