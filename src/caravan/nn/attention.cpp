#include "caravan/nn/attention.h"

#include <cmath>
#include <limits>
#include <optional>
#include <tuple>
#include <utility>

#include <ATen/ops/arange.h>
#include <ATen/ops/le.h>
#include <ATen/ops/softmax.h>
#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/nn/fused_attention.h"
#include "caravan/nn/kv_cache.h"
#include "caravan/nn/ops.h"

namespace caravan {
namespace {

/// Position of the first query (see AttentionCore).
int64_t first_query(const at::Tensor& q, const at::Tensor& k, const ForwardContext& context, const std::string& name) {
  const int64_t queries = q.size(1);
  const int64_t keys = k.size(1);
  if (context.cache != nullptr) return keys - queries;
  const int64_t length = context.global(Dim::sequence, keys);
  const int64_t first = queries == keys ? 0 : context.offset(Dim::sequence);
  if (first + queries > keys || (queries == keys && keys != length)) {
    throw ShapeError({"attention", name,
                      fmt::format("{} keys of a sequence of {} for {} queries", keys, length, queries), "",
                      "gather the keys and values, or exchange sequence for heads, before the core"});
  }
  return first;
}

/// [queries, keys]: true where a query sees a key.
at::Tensor visible(int64_t first, int64_t queries, int64_t keys, at::Device device) {
  const auto positions = at::TensorOptions().dtype(at::kLong).device(device);
  return at::arange(keys, positions).unsqueeze(0).le(at::arange(first, first + queries, positions).unsqueeze(1));
}

}  // namespace

Tensors AttentionCore::forward(Tensors inputs, const ForwardContext& context) {
  const int64_t first = first_query(inputs.at(0), inputs.at(1), context, name());
  const int64_t queries = inputs[0].size(1);
  const int64_t keys = std::min(inputs[1].size(1), first + queries);  // no query sees later keys
  const at::Tensor q = inputs[0].transpose(1, 2);
  const at::Tensor k = inputs[1].narrow(1, 0, keys).transpose(1, 2);
  const at::Tensor v = inputs[2].narrow(1, 0, keys).transpose(1, 2);
  if (q.size(1) % k.size(1) != 0) {
    throw ShapeError({"attention", name(), fmt::format("{} query heads share {} key heads", q.size(1), k.size(1)), "",
                      "split queries and keys by the same degree"});
  }
  if (q.is_meta()) return {shape_only(inputs[0], inputs[1], inputs[2], inputs[0].sizes())};
  if (context.training && dropout_ > 0) {
    return {with_dropout(q, k, v, first, context).transpose(1, 2)};
  }
  const bool is_square = queries == keys;
  const std::optional<at::Tensor> mask =
      is_square || queries == 1 ? std::nullopt : std::optional(visible(first, queries, keys, q.device()));
  return {fused_attention(q, k, v, mask, is_square).transpose(1, 2)};
}

/// The fused CPU kernels do not support dropout. This path materialises the weights, [batch, heads, queries, keys].
at::Tensor AttentionCore::with_dropout(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, int64_t first,
                                       const ForwardContext& context) const {
  const int64_t group = q.size(1) / k.size(1);
  const auto repeated = [&](const at::Tensor& x) {
    return group == 1 ? x : x.unsqueeze(2).expand({-1, -1, group, -1, -1}).flatten(1, 2);
  };
  const at::Tensor hidden = visible(first, q.size(2), k.size(2), q.device()).logical_not_();
  const double scale = 1 / std::sqrt(static_cast<double>(q.size(3)));
  at::Tensor weights = attention_product(q * scale, repeated(k).transpose(2, 3));
  weights = at::softmax(weights.masked_fill_(hidden, -std::numeric_limits<double>::infinity()), -1);
  const Piece batch = piece_of(context, Dim::batch, q.size(0));
  const Piece head = piece_of(context, Dim::head, q.size(1));
  const int64_t length = context.global(Dim::sequence, q.size(2));
  weights = counter_dropout(weights, dropout_,
                            {.seed = context.seed,
                             .name = name(),
                             .step = context.step,
                             .offset = {batch.offset, head.offset, first, 0},
                             .global_shape = {batch.global, head.global, length, length}});
  return attention_product(weights, repeated(v));
}

Attention::Attention(const ModelConfig& config, std::shared_ptr<RopeTable> rope)
    : head_width_(config.head_width()),
      rope_(std::move(rope)),
      query_(register_module<Linear>(
          "query", Linear::Options{.in = config.width, .out = config.width, .bias = config.kind == ModelKind::gpt2})),
      key_(register_module<Linear>("key", Linear::Options{.in = config.width,
                                                          .out = config.num_kv_heads() * config.head_width(),
                                                          .bias = config.kind == ModelKind::gpt2})),
      value_(register_module<Linear>("value", Linear::Options{.in = config.width,
                                                              .out = config.num_kv_heads() * config.head_width(),
                                                              .bias = config.kind == ModelKind::gpt2})),
      core_(register_module<AttentionCore>("core", config.dropout)),
      output_(register_module<Linear>("output", Linear::Options{.in = config.width,
                                                                .out = config.width,
                                                                .bias = config.kind == ModelKind::gpt2,
                                                                .init_std = residual_init_std(config)})),
      dropout_(register_module<Dropout>("dropout", config.kind == ModelKind::gpt2 ? config.dropout : 0)) {}

/// [batch, sequence, heads here, head_width].
at::Tensor Attention::heads(Linear& projection, const at::Tensor& input, const ForwardContext& context) const {
  const at::Tensor x = projection(input, context);
  if (x.size(-1) % head_width_ != 0) {
    throw ShapeError({"attention", projection.name(),
                      fmt::format("{} local columns are not a multiple of the head width {}", x.size(-1), head_width_),
                      "", "split it by a degree that divides the number of heads"});
  }
  return x.unflatten(-1, {x.size(-1) / head_width_, head_width_});
}

at::Tensor Attention::forward(const at::Tensor& input, const ForwardContext& context) {
  at::Tensor q = heads(query_, input, context);
  at::Tensor k = heads(key_, input, context);
  at::Tensor v = heads(value_, input, context);
  if (rope_ != nullptr) {
    int64_t first = piece_of(context, Dim::sequence, q.size(1)).offset;
    if (context.cache != nullptr) first += context.cache->length(name());
    q = rope(q, *rope_, first);
    k = rope(k, *rope_, first);
  }
  if (context.cache != nullptr) std::tie(k, v) = context.cache->append(name(), k, v);
  const at::Tensor mixed = core_.run({q, k, v}, context).front();
  return dropout_(output_(mixed.flatten(2), context), context);
}

}  // namespace caravan
