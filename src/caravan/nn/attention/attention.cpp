#include "caravan/nn/attention/attention.h"

#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include <ATen/ops/aminmax.h>
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
  const bool sees_all = queries == 1;
  VisibleKeys seen = is_causal ? VisibleKeys::causal() : sees_all ? VisibleKeys::all() : VisibleKeys::up_to(inputs[3]);
  if (context.documents.defined()) {
    const at::Tensor of_keys = context.documents.narrow(1, 0, keys);
    seen = seen.within_documents(has_order ? of_keys.index_select(1, inputs[3]) : of_keys, of_keys);
  }
  return fused_attention(q, first_keys(inputs[1], keys), first_keys(inputs[2], keys), seen, {}, dropout_of(q, context));
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
  return c10::make_intrusive<AttentionDropout>(dropout_, key, sizes, key.index[2].global(sizes[2]));
}

Attention::Attention(const ModelConfig& config, std::shared_ptr<RopeTable> rope)
    : head_width_(config.head_width()),
      rope_(std::move(rope)),
      query_(register_module<Linear>(
          "query", Linear::Options{.in = config.width, .out = config.width, .bias = config.has_qkv_bias()})),
      key_(register_module<Linear>("key", Linear::Options{.in = config.width,
                                                          .out = config.num_kv_heads() * config.head_width(),
                                                          .bias = config.has_qkv_bias()})),
      value_(register_module<Linear>("value", Linear::Options{.in = config.width,
                                                              .out = config.num_kv_heads() * config.head_width(),
                                                              .bias = config.has_qkv_bias()})),
      core_(register_module<AttentionCore>("core", config.dropout)),
      output_(register_module<Linear>("output", Linear::Options{.in = config.width,
                                                                .out = config.width,
                                                                .bias = config.kind == ModelKind::gpt2,
                                                                .init_std = residual_init_std(config)})),
      dropout_(register_module<Dropout>("dropout", config.kind == ModelKind::gpt2 ? config.dropout : 0)) {}

at::Tensor Attention::forward(const at::Tensor& input, const ForwardContext& context) {
  at::Tensor q = split_heads(query_(input, context), head_width_, context, query_.name());
  at::Tensor k = split_heads(key_(input, context), head_width_, context, key_.name());
  const at::Tensor v = split_heads(value_(input, context), head_width_, context, value_.name());
  if (rope_ != nullptr) {
    const at::Tensor positions = token_positions(q, context, name());
    // The positions of meta tensors are not known: at most all positions of the sequence.
    const int64_t count = q.is_meta() ? context[Dim::sequence].global(q.size(1)) : q.size(1);
    const RopeAngles angles = context.layouts != nullptr ? RopeAngles{} : rope_->angles(positions, count, q);
    q = rope(q, angles, context, name());
    k = rope(k, angles, context, name());
  }
  const at::Tensor mixed = core_.run({q, k, v}, context).front();
  return dropout_(output_(merge_heads(mixed, context, name()), context), context);
}

}  // namespace caravan
