#include "caravan/nn/embedding.h"

#include <algorithm>

#include <ATen/ops/embedding.h>
#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/text.h"
#include "caravan/nn/kv_cache.h"
#include "caravan/nn/linear.h"
#include "caravan/nn/ops.h"

namespace caravan {
namespace {

void check_ids(const at::Tensor& ids, int64_t rows, const std::string& name) {
  if (ids.is_meta()) return;
  const at::Tensor flat = ids.contiguous();
  const int64_t* begin = flat.const_data_ptr<int64_t>();
  const int64_t* end = begin + flat.numel();
  const int64_t* bad = std::find_if(begin, end, [&](int64_t id) { return id < 0 || id >= rows; });
  if (bad == end) return;
  throw DataError({"embedding", name, fmt::format("id {} at index {} has no row among {}", *bad, bad - begin, rows), "",
                   "use the tokenizer that the model was made for"});
}

}  // namespace

Embedding::Embedding(int64_t rows, int64_t width)
    : weight_(register_parameter("weight",
                                 {.shape = {rows, width}, .init = {Init::Kind::normal, kInitStd}, .decays = true})) {}

at::Tensor Embedding::forward(const at::Tensor& input, const ForwardContext& /*context*/) {
  const at::Tensor& weight = weight_.compute();
  if (input.scalar_type() != at::kLong) {
    throw UsageError(
        {"embedding", name(), fmt::format("ids are {}", c10::toString(input.scalar_type())), "", "give them as int64"});
  }
  check_ids(input, weight.size(0), name());
  return at::embedding(weight, input);
}

PositionEmbedding::PositionEmbedding(int64_t context, int64_t width)
    : weight_(register_parameter(
          "weight", {.shape = {context, width}, .init = {Init::Kind::normal, kInitStd}, .decays = true})) {}

at::Tensor PositionEmbedding::forward(const at::Tensor& input, const ForwardContext& context) {
  const int64_t sequence = input.size(1);
  int64_t first = piece_of(context, Dim::sequence, sequence).offset;
  if (context.cache != nullptr) first += context.cache->advance(name(), sequence);
  return input + weight_.compute().narrow(0, first, sequence);
}

InputEmbedding::InputEmbedding(const ModelConfig& config)
    : context_(config.context),
      token_(register_module<Embedding>("token", config.vocabulary, config.width)),
      position_(config.kind == ModelKind::gpt2
                    ? &register_module<PositionEmbedding>("position", config.context, config.width)
                    : nullptr),
      dropout_(register_module<Dropout>("dropout", config.kind == ModelKind::gpt2 ? config.dropout : 0)) {}

Tensors InputEmbedding::forward(Tensors inputs, const ForwardContext& context) {
  const at::Tensor& ids = inputs.front();
  if (ids.dim() != 2) {
    throw ShapeError(
        {"embedding", name(), fmt::format("ids are [{}]", join(ids.sizes())), "", "give them as [batch, sequence]"});
  }
  const int64_t cached = context.cache == nullptr ? 0 : context.cache->length();
  const int64_t length = context.global(Dim::sequence, ids.size(1)) + cached;
  if (length > context_) {
    throw UsageError({"embedding", name(), fmt::format("{} positions, but the model's context is {}", length, context_),
                      "", "give it shorter sequences, or make it with a longer context"});
  }
  at::Tensor x = token_(ids, context);
  if (position_ != nullptr) x = (*position_)(x, context);
  inputs.front() = dropout_(x, context);
  return inputs;
}

}  // namespace caravan
