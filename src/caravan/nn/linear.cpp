#include "caravan/nn/linear.h"

#include <algorithm>
#include <cmath>

#include "caravan/nn/dora.h"
#include "caravan/nn/dropout.h"
#include "caravan/nn/ops.h"
#include "caravan/nn/product/product.h"

namespace caravan {
namespace {

const OpType& type_of_product() {
  static const OpType type{"bsk,nk->bsn", "", {{0, 1}}};
  return type;
}

const OpType& type_of_bias() {
  static const OpType type{"bsn,n->bsn", "", {{0}, {1}}};
  return type;
}

}  // namespace

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
  if (!tiles_.empty()) {
    return with_adapter(linear(input, tiles_, bias_, weight_.name(), context), input, context);
  }
  if (has_magnitudes() && !context.leaves_out_adapters) return with_magnitudes_of(input, context);
  at::Tensor y = linear(input, weight_, bias_);
  record_layouts(y, input, context);
  return with_adapter(y, input, context);
}

void Linear::record_layouts(const at::Tensor& y, const at::Tensor& input, const ForwardContext& context) const {
  record_layout(context, type_of_product(), y, {input, weight_}, name());
  if (bias_ != nullptr) record_layout(context, type_of_bias(), y, {y, *bias_}, name());
}

Tensors Linear::outputs_of(std::span<Linear* const> layers, const at::Tensor& input, const ForwardContext& context) {
  Tensors outputs;
  if (!std::ranges::all_of(layers, &Linear::is_plain)) {
    for (Linear* layer : layers) outputs.push_back((*layer)(input, context));
    return outputs;
  }
  std::vector<WeightAndBias> parameters;
  for (Linear* layer : layers) parameters.push_back({&layer->weight_, layer->bias_});
  outputs = linear(input, parameters);
  for (size_t i = 0; i < layers.size(); ++i) layers[i]->record_layouts(outputs[i], input, context);
  return outputs;
}

std::vector<Module*> Linear::cut(const std::vector<std::vector<TileCut>>& cuts, bool follows_trained) {
  for (const auto& cut : cuts) tiles_.add(register_module<Tile>(tile_name(tiles_.size()), cut.front()));
  tiles_.set(release_parameter(weight_), follows_trained);
  return tiles_.modules();
}

void Linear::add_adapter(const LoraConfig& lora) {
  if (lora.dropout > 0) adapter_dropout_ = &register_module<Dropout>("lora_dropout", lora.dropout);
  adapter_ = &register_module<LoraAdapter>("lora", options_, lora, weight_);
}

bool Linear::has_magnitudes() const noexcept { return adapter_ != nullptr && adapter_->has_magnitudes(); }

at::Tensor Linear::with_adapter(const at::Tensor& y, const at::Tensor& input, const ForwardContext& context) {
  if (adapter_ == nullptr || context.leaves_out_adapters) return y;
  return add(y, (*adapter_)(dropped(input, context), context), context, name());
}

at::Tensor Linear::dropped(const at::Tensor& input, const ForwardContext& context) {
  return adapter_dropout_ == nullptr ? input : (*adapter_dropout_)(input, context);
}

at::Tensor Linear::times_weight(const at::Tensor& input, const ForwardContext& context) {
  at::Tensor y = linear(input, weight_);
  record_layout(context, type_of_product(), y, {input, weight_}, name());
  return y;
}

at::Tensor Linear::with_bias(const at::Tensor& y, const ForwardContext& context) const {
  if (bias_ == nullptr) return y;
  at::Tensor sum = y + bias_->compute();
  record_layout(context, type_of_bias(), sum, {y, *bias_}, name());
  return sum;
}

/// As PEFT does: with dropout, what the magnitudes change in W x is that of the dropped input, and W x itself that of
/// the whole one: W x - W d + m / norm (W d + scale B A d), where d is x with dropout.
at::Tensor Linear::with_magnitudes_of(const at::Tensor& input, const ForwardContext& context) {
  static const OpType kDifference{"bsn,bsn->bsn", "", {{0}, {1}}};
  const at::Tensor own = times_weight(input, context);
  const at::Tensor reduced = dropped(input, context);
  if (reduced.is_same(input)) return with_bias(adapter_->run({input, own}, context).front(), context);
  const at::Tensor base = times_weight(reduced, context);
  const at::Tensor adapted = adapter_->run({reduced, base}, context).front();
  const at::Tensor rest = own - base;
  record_layout(context, kDifference, rest, {own, base}, name());
  return with_bias(add(rest, adapted, context, name()), context);
}

/// A starts as in PEFT, whose uniform distribution has this deviation, and B at zero, so the output starts at zero.
LoraAdapter::LoraAdapter(const Linear::Options& of, const LoraConfig& lora, const Parameter& weight)
    : scale_(lora.scale()),
      weight_(weight),
      magnitude_(
          lora.dora
              ? &register_parameter(
                    "magnitude",
                    {.shape = {of.out},
                     .init = {.kind = Init::Kind::row_norms, .std = of.init_std, .matrix = "weight", .columns = of.in},
                     .decays = false})
              : nullptr),
      a_(register_module<Linear>("a", Linear::Options{.in = of.in,
                                                      .out = lora.rank,
                                                      .bias = false,
                                                      .init_std = 1 / std::sqrt(3 * static_cast<double>(of.in))})),
      b_(register_module<Linear>("b", Linear::Options{.in = lora.rank, .out = of.out, .bias = false, .init_std = 0})) {}

Tensors LoraAdapter::forward(Tensors inputs, const ForwardContext& context) {
  static const OpType kScale{"bsr->bsr", "", {{0}}};
  static const OpType kMagnitudes{"bsn,n,n->bsn", "", {{0, 1}}};
  const at::Tensor h = a_(inputs.front(), context);
  const at::Tensor scaled = h * scale_;
  record_layout(context, kScale, scaled, {h}, name());
  const at::Tensor added = b_(scaled, context);
  if (magnitude_ == nullptr) return {added};
  const at::Tensor sum = add(inputs.at(1), added, context, name());
  const at::Tensor norms = row_norms(context);
  at::Tensor y = with_magnitudes(sum, *magnitude_, norms);
  record_layout(context, kMagnitudes, y, {sum, *magnitude_, norms}, name());
  return {y};
}

at::Tensor LoraAdapter::row_norms(const ForwardContext& context) {
  static const OpType kSquares{"nk,rk,nr->n"};
  const Parameter& a = a_.weight();
  const Parameter& b = b_.weight();
  at::Tensor squares;
  const at::Tensor norms = adapted_row_norms(weight_.compute().detach(), a.compute().detach(), b.compute().detach(),
                                             scale_, reduction_.get(), &squares);
  if (context.layouts == nullptr) return norms;
  record_layout(context, kSquares, squares, {weight_, a, b}, name());
  const Layout& summands = context.layouts->of(squares, name());
  context.layouts->set(norms, reduction_ == nullptr ? summands : reduction_->reduced(summands), "the norms of rows");
  return norms;
}

}  // namespace caravan
