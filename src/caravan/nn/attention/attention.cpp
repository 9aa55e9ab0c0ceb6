#include "caravan/nn/attention/attention.h"

#include <bit>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include <ATen/ops/aminmax.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/softmax.h>
#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/text.h"
#include "caravan/module/path.h"
#include "caravan/nn/attention/fused_attention.h"
#include "caravan/nn/ops.h"

namespace caravan {
namespace {

[[noreturn]] void refuse_attention(const std::string& name, const std::string& fact, const char* action) {
  throw ShapeError({"attention", name, fact, "", action});
}

void check_order(const at::Tensor& order, int64_t queries, int64_t keys, const std::string& name) {
  if (order.scalar_type() != at::kLong || order.sizes() != at::IntArrayRef{queries}) {
    refuse_attention(name, fmt::format("an order [{}] of {} queries", join(order.sizes()), queries),
                     "give int64 [queries]");
  }
  if (order.is_meta() || queries == 0) return;
  const auto [least, most] = at::aminmax(order);
  if (least.item<int64_t>() >= 0 && most.item<int64_t>() < keys) return;
  refuse_attention(
      name, fmt::format("queries have the keys {} to {} of {}", least.item<int64_t>(), most.item<int64_t>(), keys),
      "give the keys of all queries");
}

void check_inputs(const Tensors& inputs, const ForwardContext& context, const std::string& name) {
  if (inputs.size() != 3 && inputs.size() != 4) {
    throw InternalError(
        {"attention", name, fmt::format("takes q, k, v and perhaps an order, got {}", inputs.size()), "", ""});
  }
  const bool has_order = inputs.size() == 4;
  const int64_t queries = inputs[0].size(1);
  const int64_t keys = inputs[1].size(1);
  if (has_order) check_order(inputs[3], queries, keys, name);
  const DimIndex& sequence = checked_index(context, Dim::sequence, queries, name);
  const int64_t length = has_order && sequence.is_whole() ? keys : sequence.global(queries);
  if (keys != length || (!has_order && queries != keys)) {
    refuse_attention(name, fmt::format("{} keys of a sequence of {} for {} queries", keys, length, queries),
                     "gather the keys and values, or exchange sequence for heads, before the core");
  }
  if (inputs[0].size(2) % inputs[1].size(2) != 0) {
    refuse_attention(name, fmt::format("{} query heads share {} key heads", inputs[0].size(2), inputs[1].size(2)),
                     "split queries and keys by the same degree");
  }
  const at::IntArrayRef of_keys = inputs[1].sizes().slice(0, 2);
  if (context.documents.defined() && context.documents.sizes() != of_keys) {
    refuse_attention(name, fmt::format("documents [{}] of keys [{}]", join(context.documents.sizes()), join(of_keys)),
                     "give the documents of all keys, [batch, keys]");
  }
}

/// The number of keys that any query sees: no later ones. For meta tensors, whose order is not known: all.
int64_t num_keys(const at::Tensor& order, int64_t all) {
  if (order.is_meta()) return all;
  return order.numel() == 0 ? 0 : order.max().item<int64_t>() + 1;
}

bool is_in_order(const at::Tensor& order) {
  return !order.is_meta() && order.equal(counted_up(0, order.numel(), order.device()));
}

/// The slope of a head: 2^(-8 i / n) for the i-th of the largest power of two, n, of heads; those behind it have the
/// slopes of every second of 2n heads.
double alibi_slope(int64_t head, int64_t heads) {
  const auto power = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(heads)));
  const bool is_behind = head >= power;
  const int64_t i = is_behind ? 2 * (head - power) + 1 : head + 1;
  return std::pow(2.0, -8.0 * static_cast<double>(i) / static_cast<double>(is_behind ? 2 * power : power));
}

/// A view for autograd too, so only where there are more.
at::Tensor first_keys(const at::Tensor& x, int64_t keys) { return x.size(1) == keys ? x : x.narrow(1, 0, keys); }

}  // namespace

Tensors AttentionCore::forward(Tensors inputs, const ForwardContext& context) {
  static const OpType kType{"bsnw,btnw,btnw->bsnw", "tw", {{2}}};
  check_inputs(inputs, context, name());
  at::Tensor out = attend(inputs, context);
  record_layout(context, kType, out, {inputs[0], inputs[1], inputs[2]}, name());
  return {out};
}

at::Tensor AttentionCore::attend(const Tensors& inputs, const ForwardContext& context) const {
  const at::Tensor& q = inputs[0];
  const int64_t queries = q.size(1);
  const bool has_order = inputs.size() == 4;
  const int64_t keys = has_order ? num_keys(inputs[3], inputs[1].size(1)) : queries;
  const bool is_causal = queries == keys && (!has_order || is_in_order(inputs[3]));
  const bool is_windowed = options_.window > 0 && keys > options_.window;
  const bool sees_all = queries == 1 && !is_windowed;
  VisibleKeys seen = is_causal ? VisibleKeys::causal() : sees_all ? VisibleKeys::all() : VisibleKeys::up_to(inputs[3]);
  if (is_windowed) seen = seen.within_window(options_.window);
  if (context.documents.defined()) {
    const at::Tensor of_keys = context.documents.narrow(1, 0, keys);
    seen = seen.within_documents(has_order ? of_keys.index_select(1, inputs[3]) : of_keys, of_keys);
  }
  Scores scores = this->scores(q.size(2), keys, context, q.options());
  if (scores.bias.defined() && has_order) scores.query_positions = inputs[3];
  return fused_attention(q, first_keys(inputs[1], keys), first_keys(inputs[2], keys), seen, scores,
                         dropout_of(q, context));
}

Scores AttentionCore::scores(int64_t heads, int64_t keys, const ForwardContext& context,
                             const at::TensorOptions& like) const {
  Scores scores{.scale = options_.scale, .soft_cap = options_.soft_cap};
  if (options_.alibi_heads == 0) return scores;
  const DimIndex& index = checked_index(context, Dim::head, heads, name());
  const at::Tensor global = index.indices(heads);
  at::Tensor slopes = at::empty({heads, 1}, at::kFloat);
  for (int64_t head = 0; head < heads; ++head) {
    slopes.data_ptr<float>()[head] =
        static_cast<float>(alibi_slope(global.const_data_ptr<int64_t>()[head], options_.alibi_heads));
  }
  slopes = slopes.to(like.device());
  scores.zero = keys - 1;
  scores.bias = slopes * at::arange(1 - keys, 1, slopes.options());  // no key is behind its query
  return scores;
}

c10::intrusive_ptr<AttentionDropout> AttentionCore::dropout_of(const at::Tensor& q,
                                                               const ForwardContext& context) const {
  if (!drops(context)) return {};
  const std::vector<int64_t> sizes{q.size(0), q.size(2), q.size(1)};
  const DropoutKey key{.seed = context.seed,
                       .name = name(),
                       .step = context.step,
                       .index = {checked_index(context, Dim::batch, sizes[0], name()),
                                 checked_index(context, Dim::head, sizes[1], name()),
                                 checked_index(context, Dim::sequence, sizes[2], name())}};
  return c10::make_intrusive<AttentionDropout>(options_.dropout, key, sizes, key.index[2].global(sizes[2]));
}

namespace {

AttentionCore::Options core_options(const ModelConfig& config, int64_t layer) {
  return {.dropout = config.dropout,
          .scale = config.score_width > 0 ? 1 / std::sqrt(config.score_width) : 0,
          .soft_cap = config.attention_cap,
          .window = config.window_of(layer),
          .alibi_heads = config.arch.positions == Positions::alibi ? config.heads : 0};
}

}  // namespace

Attention::Attention(const ModelConfig& config, int64_t layer, std::shared_ptr<RopeTable> rope)
    : head_width_(config.head_width()),
      qk_norm_(config.arch.qk_norm),
      rope_(std::move(rope)),
      query_(register_module<Linear>(
          "query", Linear::Options{.in = config.width, .out = config.query_width(), .bias = config.arch.qkv_bias})),
      key_(register_module<Linear>(
          "key", Linear::Options{.in = config.width, .out = config.kv_width(), .bias = config.arch.qkv_bias})),
      value_(register_module<Linear>(
          "value", Linear::Options{.in = config.width, .out = config.kv_width(), .bias = config.arch.qkv_bias})),
      query_norm_(register_norm("query_norm", config, config.query_width())),
      key_norm_(register_norm("key_norm", config, config.kv_width())),
      core_(register_module<AttentionCore>("core", core_options(config, layer))),
      output_(register_module<Linear>("output", Linear::Options{.in = config.query_width(),
                                                                .out = config.width,
                                                                .bias = config.arch.output_bias,
                                                                .init_std = residual_init_std(config)})),
      dropout_(register_module<Dropout>("dropout", branch_dropout(config))) {}

Norm* Attention::register_norm(const char* name, const ModelConfig& config, int64_t width) {
  if (qk_norm_ == QkNorm::none) return nullptr;
  return &register_module<Norm>(name, config, qk_norm_ == QkNorm::head ? head_width_ : width);
}

at::Tensor Attention::heads_of(Linear& projection, Norm* norm, const at::Tensor& input, const ForwardContext& context) {
  at::Tensor x = projection(input, context);
  if (norm != nullptr && qk_norm_ == QkNorm::whole) x = (*norm)(x, context);
  x = split_heads(x, head_width_, context, projection.name());
  return norm != nullptr && qk_norm_ == QkNorm::head ? (*norm)(x, context) : x;
}

at::Tensor Attention::forward(const at::Tensor& input, const ForwardContext& context) {
  at::Tensor q = heads_of(query_, query_norm_, input, context);
  at::Tensor k = heads_of(key_, key_norm_, input, context);
  const at::Tensor v = heads_of(value_, nullptr, input, context);
  if (rope_ != nullptr) {
    const at::Tensor positions = token_positions(q, context, name());
    // The positions of meta tensors are not known: at most all positions of the sequence.
    const int64_t whole = context[Dim::sequence].global(q.size(1));
    const int64_t count = q.is_meta() ? whole : q.size(1);
    const int64_t length = context.phase == Phase::generate ? 0 : whole;
    const RopeAngles angles = context.layouts != nullptr ? RopeAngles{} : rope_->angles(positions, count, q, length);
    q = rope(q, angles, context, name());
    k = rope(k, angles, context, name());
  }
  const at::Tensor mixed = core_.run({q, k, v}, context).front();
  return dropout_(output_(merge_heads(mixed, context, name()), context), context);
}

}  // namespace caravan
