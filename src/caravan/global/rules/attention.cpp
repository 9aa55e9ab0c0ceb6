#include <ATen/OpMathType.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_fused_sdp_choice.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>

#include "caravan/global/local_call.h"
#include "caravan/global/rules/rules.h"
#include "caravan/global/rules/typing.h"

namespace caravan {
namespace {

/// The labels of scaled dot-product attention: [batch, heads, queries, width] and [batch, heads, keys, width]. Of
/// several query heads with the same key head, the key heads are labelled, and those with one key are whole.
struct AttentionDims {
  AttentionDims(const OpCall& call, Typing& typing) {
    const int q = typing.operand_of("query");
    const int k = typing.operand_of("key");
    if (q < 0 || k < 0 || call.num_dims(q) != 4 || call.num_dims(k) != 4) return;
    const std::vector<int64_t> queries = call.sizes(q);
    const std::vector<int64_t> keys = call.sizes(k);
    if (queries[0] != keys[0] || keys[1] == 0 || queries[1] % keys[1] != 0) return;
    batch = typing.next_dim(queries[0]);
    key_heads = typing.next_dim(keys[1]);
    const std::string sharing = typing.next_dim(queries[1] / keys[1]);
    query_heads = key_heads + sharing;
    if (!key_heads.empty()) typing.operation.extents[key_heads[0]] = keys[1];
    if (!sharing.empty()) typing.operation.extents[sharing[0]] = queries[1] / keys[1];
    position = typing.next_dim(queries[2]);
    key = typing.next_dim(keys[2]);
    const std::string width = typing.next_dim(queries[3]);
    const std::string value_width = typing.next_dim(call.sizes(typing.operand_of("value"))[3]);
    typing.need(sharing + key + width + value_width);
    query = {batch, query_heads, position, width};
    keys_ = {batch, key_heads, key, width};
    values = {batch, key_heads, key, value_width};
    output = {batch, query_heads, position, value_width};
    fits = true;
  }

  void set(Typing& typing, const OpCall& call) const {
    typing.set("query", query);
    typing.set("key", keys_);
    typing.set("value", values);
    typing.set("out", output);
    for (const auto* argument : {"grad_out", "grad_out_"}) typing.set(argument, output);
    for (const auto* argument : {"attn_mask", "attn_bias"}) {
      const Dims mask{batch, query_heads, position, key};
      const int i = typing.operand_of(argument);
      if (i < 0 || call.num_dims(i) > 4) continue;
      typing.set(argument, Dims(mask.end() - call.num_dims(i), mask.end()));
    }
  }

  std::string batch, query_heads, key_heads, position, key;
  Dims query, keys_, values, output;
  bool fits = false;
};

/// A rank that has no queries: the op divides by their number.
void cpu_attention_kernel(LocalCall& call) {
  const at::Tensor query = call.tensor("query");
  if (query.numel() > 0) {
    call.run();
    return;
  }
  const at::Tensor key = call.tensor("key");
  const at::Tensor value = call.tensor("value");
  if (call.schema().returns().size() == 3) {
    call.give({at::zeros_like(query), at::zeros_like(key), at::zeros_like(value)});
    return;
  }
  const auto logsumexp = query.options().dtype(at::toOpMathType(query.scalar_type()));
  call.give({at::empty({query.size(0), query.size(1), query.size(2), value.size(3)}, query.options()),
             at::empty({query.size(0), query.size(1), query.size(2)}, logsumexp)});
}

/// Batch and heads are independent; so are queries, unless a causal mask tells their positions. The gradients of keys
/// and values sum over queries.
TypedResult cpu_attention(const OpCall& call) {
  Typing typing(call);
  const AttentionDims dims(call, typing);
  if (!dims.fits || call.number("dropout_p") != 0) return std::nullopt;
  dims.set(typing, call);
  const Dims logsumexp{dims.batch, dims.query_heads, dims.position};
  typing.set("logsumexp", logsumexp);
  if (call.flag("is_causal")) typing.need(dims.position);
  typing.operation.kernel = cpu_attention_kernel;
  if (call.index("logsumexp") >= 0) {
    typing.operation.outputs = {dims.query, dims.keys_, dims.values};
  } else {
    typing.operation.outputs = {dims.output, logsumexp};
  }
  return typing.finish();
}

/// Of accelerators: by batch and heads. What they return beside the output differs between them; dropout would need
/// the random numbers of the whole.
TypedResult device_attention(const OpCall& call) {
  Typing typing(call);
  const AttentionDims dims(call, typing);
  if (!dims.fits || call.number("dropout_p") != 0) return std::nullopt;
  dims.set(typing, call);
  typing.need(dims.position);
  const Dims logsumexp{dims.batch, dims.query_heads, ""};
  const bool is_backward = call.index("logsumexp") >= 0;
  const int saved = typing.operand_of("logsumexp");
  if (saved >= 0 && call.num_dims(saved) == 3) {
    typing.set("logsumexp", {dims.batch, dims.query_heads, typing.next_dim(call.sizes(saved)[2])});
    typing.need(typing.operation.inputs[saved][2]);
  }
  std::vector<Dims>& outputs = typing.operation.outputs;
  if (is_backward) {
    outputs = {dims.query, dims.keys_, dims.values};
    const int bias = typing.operand_of("attn_bias");
    if (bias >= 0 && call.schema().returns().size() > 3) outputs.push_back(typing.operation.inputs[bias]);
  } else {
    outputs = {dims.output, logsumexp};
    for (size_t i = 2; i < call.schema().returns().size(); ++i) {
      outputs.emplace_back();
      typing.operation.whole_outputs.push_back(static_cast<int>(i));
    }
  }
  return typing.finish();
}

/// Which kernel is best, by the sizes of the whole, so that all ranks choose the same one.
TypedResult choose_attention(const OpCall& call) {
  Typing typing(call);
  TypedCall operation = typing.finish();
  std::vector<std::vector<int64_t>> sizes;
  operation.layouts.emplace();
  for (const GlobalOperand& operand : call.operands()) {
    sizes.push_back(operand.sizes);
    operation.layouts->first.push_back(*operand.layout);
  }
  operation.kernel = [sizes](LocalCall& local) {
    size_t i = 0;
    std::vector<at::Tensor> whole;
    for (const auto* argument : {"query", "key", "value", "attn_mask"}) {
      const at::Tensor piece = local.tensor(argument);
      whole.push_back(piece.defined() ? at::empty(sizes.at(i++), piece.options()) : piece);
    }
    const c10::IValue& scale = local.argument("scale");
    const auto mask = whole[3].defined() ? std::optional(whole[3]) : std::nullopt;
    const int64_t choice = at::_fused_sdp_choice(
        whole[0], whole[1], whole[2], mask, local.argument("dropout_p").toDouble(),
        local.argument("is_causal").toBool(), scale.isNone() ? std::nullopt : std::optional(scale.toDouble()),
        local.argument("enable_gqa").toBool());
    local.give({choice});
  };
  return operation;
}

// ---- attention with its projections ----

/// [batch, positions, 3 x heads x width] to three of [batch, heads, positions, width].
TypedResult rescale_qkv(const OpCall& call) {
  Typing typing(call);
  const std::vector<int64_t> sizes = call.sizes(typing.operand_of("qkv"));
  const int64_t num_heads = call.integer("num_heads");
  if (sizes.size() != 3 || num_heads < 1 || sizes[2] % (3 * num_heads) != 0) return std::nullopt;
  const std::string batch = typing.next_dim(sizes[0]);
  const std::string position = typing.next_dim(sizes[1]);
  const std::string which = typing.next_dim(3);
  const std::string head = typing.next_dim(num_heads);
  const std::string width = typing.next_dim(sizes[2] / (3 * num_heads));
  typing.operation.extents[which[0]] = 3;
  if (!head.empty()) typing.operation.extents[head[0]] = num_heads;
  if (!width.empty()) typing.operation.extents[width[0]] = sizes[2] / (3 * num_heads);
  typing.need(which + width);
  typing.set("qkv", {batch, position, which + head + width});
  typing.set("qkv_bias", {which + head + width});
  typing.operation.outputs.assign(3, {batch, head, position, width});
  typing.operation.local_arguments = {{call.index("num_heads"), {head}}};
  typing.operation.kernel = [columns = sizes[2] / (3 * num_heads)](LocalCall& local) {
    const at::Tensor qkv = local.tensor("qkv");
    if (qkv.numel() > 0) {
      local.run();
      return;
    }
    const at::Tensor none =
        at::empty({qkv.size(0), local.argument("num_heads").toInt(), qkv.size(1), columns}, qkv.options());
    local.give({none, none.clone(), none.clone()});
  };
  return typing.finish();
}

/// A mask that has the batch as its first dim: of keys (type 1), or of all heads (type 2).
void set_batch_mask(Typing& typing, const OpCall& call, const std::string& batch, int64_t num_rows) {
  const int mask = typing.operand_of("mask");
  if (mask < 0) return;
  const int64_t type = call.integer("mask_type", -1);
  const bool has_batch = (type == 1 && call.num_dims(mask) == 2) || (type == 2 && call.num_dims(mask) == 4);
  if (!has_batch || call.sizes(mask)[0] != num_rows) {
    if (type != 0) typing.need(batch);  // which dims the mask has is not known
    return;
  }
  Dims dims{batch};
  for (int64_t dim = 1; dim < call.num_dims(mask); ++dim) dims.push_back(typing.next_dim(call.sizes(mask)[dim]));
  for (size_t dim = 1; dim < dims.size(); ++dim) typing.need(dims[dim]);
  typing.set("mask", dims);
}

/// A rank that has nothing of the batch gets weights all the same, which the op leaves out.
void multi_head_attention_kernel(LocalCall& call) {
  const at::Tensor query = call.tensor("query");
  if (query.numel() > 0) {
    call.run();
    return;
  }
  std::vector<int64_t> sizes{query.size(0), query.size(1), call.tensor("key").size(1)};
  if (!call.argument("average_attn_weights").toBool()) {
    sizes.insert(sizes.begin() + 1, call.argument("num_head").toInt());
  }
  const bool needs_weights = call.argument("need_weights").toBool();
  call.give({at::empty_like(query), needs_weights ? at::empty(sizes, query.options()) : at::Tensor()});
}

TypedResult multi_head_attention(const OpCall& call) {
  Typing typing(call);
  const std::vector<int64_t> sizes = call.sizes(typing.operand_of("query"));
  if (sizes.size() != 3) return std::nullopt;
  const std::string batch = typing.next_dim(sizes[0]);
  for (const auto* argument : {"query", "key", "value"}) {
    const std::vector<int64_t> own = call.sizes(typing.operand_of(argument));
    if (own.size() != 3 || own[0] != sizes[0]) return std::nullopt;
    const Dims dims{batch, typing.next_dim(own[1]), typing.next_dim(own[2])};
    typing.need(dims[1] + dims[2]);
    typing.set(argument, dims);
  }
  set_batch_mask(typing, call, batch, sizes[0]);
  typing.operation.kernel = multi_head_attention_kernel;
  const bool averages = call.flag("average_attn_weights");
  typing.operation.outputs = {{batch, "", ""}, averages ? Dims{batch, "", ""} : Dims{batch, "", "", ""}};
  return typing.finish();
}

TypedResult encoder_layer(const OpCall& call) {
  Typing typing(call);
  const std::vector<int64_t> sizes = call.sizes(typing.operand_of("src"));
  if (sizes.size() != 3) return std::nullopt;
  const Dims dims = typing.of("src");
  typing.need(dims[1] + dims[2]);
  set_batch_mask(typing, call, dims[0], sizes[0]);
  typing.operation.outputs = {dims};
  typing.operation.kernel = [](LocalCall& local) {
    const at::Tensor source = local.tensor("src");
    source.numel() > 0 ? local.run() : local.give({at::empty_like(source)});
  };
  return typing.finish();
}

}  // namespace

void add_attention_rules(RuleTable& rules) {
  rules.add({"aten::_scaled_dot_product_flash_attention_for_cpu",
             "aten::_scaled_dot_product_flash_attention_for_cpu_backward"},
            cpu_attention);
  rules.add({"aten::_scaled_dot_product_flash_attention", "aten::_scaled_dot_product_flash_attention_backward",
             "aten::_scaled_dot_product_efficient_attention", "aten::_scaled_dot_product_efficient_attention_backward",
             "aten::_scaled_dot_product_cudnn_attention", "aten::_scaled_dot_product_cudnn_attention_backward",
             "aten::_scaled_dot_product_fused_attention_overrideable",
             "aten::_scaled_dot_product_fused_attention_overrideable_backward"},
            device_attention);
  rules.add("aten::_fused_sdp_choice", choose_attention);
  rules.add("aten::_transform_bias_rescale_qkv", rescale_qkv);
  rules.add("aten::_native_multi_head_attention", multi_head_attention);
  rules.add("aten::_transformer_encoder_layer_fwd", encoder_layer);
}

}  // namespace caravan
