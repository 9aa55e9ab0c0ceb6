#include "caravan/nn/attention/attention.h"

#include <array>
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
#include "caravan/nn/init_std.h"
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

void check_count(const Tensors& inputs, bool takes_order, const std::string& name) {
  if (inputs.size() == 3 || (takes_order && inputs.size() == 4)) return;
  throw InternalError(
      {"attention", name,
       fmt::format("takes q, k, v{}, got {}", takes_order ? " and perhaps an order" : "", inputs.size()), "", ""});
}

void check_heads(const Tensors& inputs, const std::string& name) {
  if (inputs[0].size(2) % inputs[1].size(2) == 0) return;
  refuse_attention(name, fmt::format("{} query heads share {} key heads", inputs[0].size(2), inputs[1].size(2)),
                   "split queries and keys by the same degree");
}

void check_documents(const at::Tensor& documents, const at::Tensor& x, const char* what, const std::string& name) {
  const at::IntArrayRef wanted = x.sizes().slice(0, 2);
  if (!documents.defined() || documents.sizes() == wanted) return;
  refuse_attention(name, fmt::format("documents [{}] of {} [{}]", join(documents.sizes()), what, join(wanted)),
                   "give the documents of all of them, [batch, sequence]");
}

void check_inputs(const Tensors& inputs, const ForwardContext& context, const std::string& name) {
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
  check_heads(inputs, name);
  check_documents(context.documents, inputs[1], "keys", name);
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

AttentionCore::AttentionCore(const Options& options, const Buckets& buckets) : options_(options) {
  if (buckets.count == 0) return;
  Parameter& weight = buckets.shared != nullptr ? share_parameter(*buckets.shared)
                                                : register_parameter("bias", {.shape = {buckets.count, buckets.heads},
                                                                              .init = {Init::Kind::normal, kInitStd},
                                                                              .decays = false,
                                                                              .matrices = 0});
  buckets_ = DistanceBuckets(&weight, buckets.most, options.is_causal);
}

Tensors AttentionCore::forward(Tensors inputs, const ForwardContext& context) {
  static const OpType kType{"bsnw,btnw,btnw->bsnw", "tw", {{2}}};
  check_count(inputs, !options_.is_cross, name());
  at::Tensor out = options_.is_cross ? attend_to_source(inputs, context) : attend(inputs, context);
  record_layout(context, kType, out, {inputs[0], inputs[1], inputs[2]}, name());
  return {out};
}

at::Tensor AttentionCore::attend_to_source(const Tensors& inputs, const ForwardContext& context) const {
  check_heads(inputs, name());
  VisibleKeys seen = VisibleKeys::all();
  if (context.source_documents.defined()) {
    check_documents(context.documents, inputs[0], "queries", name());
    check_documents(context.source_documents, inputs[1], "keys", name());
    seen = seen.within_documents(context.documents, context.source_documents);
  }
  return fused_attention(inputs[0], inputs[1], inputs[2], seen,
                         {.scale = options_.scale, .soft_cap = options_.soft_cap}, dropout_of(inputs[0], context));
}

VisibleKeys AttentionCore::visible_keys(const Tensors& inputs, int64_t keys) const {
  if (!options_.is_causal) return VisibleKeys::all();
  const int64_t queries = inputs[0].size(1);
  const bool has_order = inputs.size() == 4;
  const bool is_windowed = options_.window > 0 && keys > options_.window;
  const auto without_window = [&] {
    if (queries == keys && (!has_order || is_in_order(inputs[3]))) return VisibleKeys::causal();
    return queries == 1 && !is_windowed ? VisibleKeys::all() : VisibleKeys::up_to(inputs[3]);
  };
  return is_windowed ? without_window().within_window(options_.window) : without_window();
}

at::Tensor AttentionCore::attend(const Tensors& inputs, const ForwardContext& context) const {
  check_inputs(inputs, context, name());
  const at::Tensor& q = inputs[0];
  const bool has_order = inputs.size() == 4;
  const int64_t all = inputs[1].size(1);
  const int64_t keys = has_order && options_.is_causal ? num_keys(inputs[3], all) : all;
  VisibleKeys seen = visible_keys(inputs, keys);
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
  if (buckets_.weight() != nullptr) {
    scores.zero = keys - 1;
    scores.bias = biases_of(heads, keys, context);
    return scores;
  }
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

at::Tensor AttentionCore::biases_of(int64_t heads, int64_t keys, const ForwardContext& context) const {
  at::Tensor biases = buckets_.biases(keys);
  if (biases.size(0) == heads) return biases;
  // The table is whole, and the heads of queries are split: those that are here.
  const at::Tensor here = checked_index(context, Dim::head, heads, name()).indices(heads);
  return biases.index_select(0, here.to(biases.device()));
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

AttentionCore::Options core_options(const ModelConfig& config, int64_t layer, bool is_cross) {
  return {.is_causal = !is_cross && config.is_causal(layer),
          .is_cross = is_cross,
          .dropout = config.dropout,
          .scale = config.score_width > 0 ? 1 / std::sqrt(config.score_width) : 0,
          .soft_cap = config.attention_cap,
          .window = config.window_of(layer),
          .alibi_heads = config.arch.positions == Positions::alibi && !is_cross ? config.heads : 0};
}

AttentionCore::Buckets core_buckets(const ModelConfig& config, Parameter* shared, bool is_cross) {
  if (config.arch.positions != Positions::buckets || is_cross) return {};
  return {.count = config.buckets, .most = config.bucket_distance, .heads = config.heads, .shared = shared};
}

}  // namespace

Attention::Attention(const ModelConfig& config, int64_t layer, const Shared& shared, Role role)
    : head_width_(config.head_width()),
      qk_norm_(config.arch.qk_norm),
      rope_(shared.rope),
      query_(register_module<Linear>("query", Linear::Options{.in = config.width,
                                                              .out = config.query_width(),
                                                              .bias = config.arch.qkv_bias,
                                                              .init_std = query_init_std(config)})),
      key_(register_module<Linear>("key", Linear::Options{.in = config.width,
                                                          .out = config.kv_width(),
                                                          .bias = config.arch.qkv_bias,
                                                          .init_std = input_init_std(config, config.width)})),
      value_(register_module<Linear>("value", Linear::Options{.in = config.width,
                                                              .out = config.kv_width(),
                                                              .bias = config.arch.qkv_bias,
                                                              .init_std = input_init_std(config, config.width)})),
      query_norm_(register_norm("query_norm", config, config.query_width())),
      key_norm_(register_norm("key_norm", config, config.kv_width())),
      core_(register_module<AttentionCore>("core", core_options(config, layer, role == Role::cross),
                                           core_buckets(config, shared.buckets, role == Role::cross))),
      output_(register_module<Linear>("output",
                                      Linear::Options{.in = config.query_width(),
                                                      .out = config.width,
                                                      .bias = config.arch.output_bias,
                                                      .init_std = output_init_std(config, config.query_width())})),
      dropout_(register_module<Dropout>("dropout", branch_dropout(config))) {}

Norm* Attention::register_norm(const char* name, const ModelConfig& config, int64_t width) {
  if (qk_norm_ == QkNorm::none) return nullptr;
  return &register_module<Norm>(name, config, qk_norm_ == QkNorm::head ? head_width_ : width);
}

Tensors Attention::projections(const Tensors& inputs, const ForwardContext& context) {
  if (inputs.size() == 1) return Linear::outputs_of(std::array{&query_, &key_, &value_}, inputs.front(), context);
  // In the order in which they are registered, which is that of units.
  at::Tensor q = query_(inputs.front(), context);
  Tensors of_states = Linear::outputs_of(std::array{&key_, &value_}, inputs.back(), context);
  return {std::move(q), std::move(of_states[0]), std::move(of_states[1])};
}

at::Tensor Attention::heads_of(const Linear& projection, Norm* norm, at::Tensor x, const ForwardContext& context) {
  if (norm != nullptr && qk_norm_ == QkNorm::whole) x = (*norm)(x, context);
  x = split_heads(x, head_width_, context, projection.name());
  return norm != nullptr && qk_norm_ == QkNorm::head ? (*norm)(x, context) : x;
}

Tensors Attention::forward(Tensors inputs, const ForwardContext& context) {
  Tensors projected = projections(inputs, context);
  at::Tensor q = heads_of(query_, query_norm_, std::move(projected[0]), context);
  at::Tensor k = heads_of(key_, key_norm_, std::move(projected[1]), context);
  const at::Tensor v = heads_of(value_, nullptr, std::move(projected[2]), context);
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
  return {dropout_(output_(merge_heads(mixed, context, name()), context), context)};
}

}  // namespace caravan
