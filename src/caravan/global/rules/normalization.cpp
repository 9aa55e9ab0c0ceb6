#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include "caravan/global/rules/rules.h"
#include "caravan/global/rules/typing.h"

namespace caravan {
namespace {

// ---- over the last dims: layer_norm, rms_norm ----

/// The first `n` of dims, and dims of one element after them: statistics of what is normalized.
Dims statistic_dims(Dims dims, size_t n) {
  for (size_t dim = n; dim < dims.size(); ++dim) dims[dim] = "";
  return dims;
}

/// Each position of the dims before those that are normalized is independent. Gradients of weights sum over them.
TypedResult layer_norm(const OpCall& call) {
  Typing typing(call);
  const Dims dims = typing.of("input");
  const size_t num_normalized = call.integers("normalized_shape").size();
  if (num_normalized > dims.size()) return std::nullopt;
  const size_t num_batch = dims.size() - num_normalized;
  const Dims normalized(dims.begin() + static_cast<int64_t>(num_batch), dims.end());
  const Dims per_position = statistic_dims(dims, num_batch);
  typing.need(normalized);
  typing.set("weight", normalized);
  typing.set("bias", normalized);
  typing.set("grad_out", dims);
  typing.set("mean", per_position);
  typing.set("rstd", per_position);
  const bool is_backward = call.index("grad_out") >= 0;
  typing.operation.outputs = {dims};
  if (is_backward) {
    typing.operation.outputs.resize(call.schema().returns().size(), normalized);
    typing.operation.kernel = on_contiguous({"grad_out", "input", "mean", "rstd", "weight", "bias"});
    typing.operation.terms = {{typing.operand_of("grad_out")}};
    if (typing.operand_of("bias") >= 0) typing.operation.unread = {typing.operand_of("bias")};
  } else {
    typing.operation.outputs.resize(call.schema().returns().size(), per_position);
  }
  return typing.finish();
}

// ---- over groups of channels ----

/// A rank may have no group, which the op refuses.
void group_norm_kernel(LocalCall& call) {
  const at::Tensor x = call.tensor("input");
  if (x.numel() > 0) {
    on_contiguous({"input", "grad_out", "mean", "rstd", "weight", "bias"})(call);
    return;
  }
  if (call.schema().arguments()[0].name() == "grad_out") {
    const c10::List<bool> mask = call.argument("output_mask").toBoolList();
    const at::Tensor weight = call.tensor("weight");
    const at::Tensor zeros = at::zeros({x.size(1)}, weight.defined() ? weight.options() : x.options());
    call.give({mask[0] ? at::empty_like(x) : at::Tensor(), mask[1] ? zeros : at::Tensor(),
               mask[2] ? zeros.clone() : at::Tensor()});
    return;
  }
  const at::Tensor none = at::zeros({x.size(0), call.argument("group").toInt()}, x.options());
  call.give({at::empty_like(x), none, none.clone()});
}

/// Batch and groups are independent; a cut of the channels must fall between groups.
TypedResult group_norm(const OpCall& call) {
  Typing typing(call);
  const int64_t num_rows = call.integer("N");
  const int64_t num_channels = call.integer("C");
  const int64_t num_groups = call.integer("group");
  const std::vector<int64_t> sizes = call.sizes(typing.operand_of("input"));
  if (sizes.size() < 2 || sizes[0] != num_rows || sizes[1] != num_channels || num_groups < 1 ||
      num_channels % num_groups != 0) {
    return std::nullopt;
  }
  Dims dims = typing.of(sizes);
  const std::string row = dims[0];
  const std::string group = typing.next_dim(num_groups);
  const std::string within = typing.next_dim(num_channels / num_groups);
  if (!group.empty()) typing.operation.extents[group[0]] = num_groups;
  if (!within.empty()) typing.operation.extents[within[0]] = num_channels / num_groups;
  const std::string channel = group + within;
  dims[1] = channel;
  for (size_t dim = 2; dim < dims.size(); ++dim) typing.need(dims[dim]);
  typing.need(within);
  typing.set("input", dims);
  typing.set("grad_out", dims);
  typing.set("weight", {channel});
  typing.set("bias", {channel});
  typing.set("mean", {row, group});
  typing.set("rstd", {row, group});
  typing.operation.kernel = group_norm_kernel;
  if (call.index("grad_out") >= 0) {
    typing.operation.outputs = {dims, {channel}, {channel}};
    if (sizes[0] == 0) {  // no rows: gradients of 0, whatever the weights
      for (int i = 0; i < call.num_read(); ++i) typing.operation.unread.push_back(i);
    }
    typing.operation.terms = {{typing.operand_of("grad_out")}};
  } else {
    typing.operation.outputs = {dims, {row, group}, {row, group}};
  }
  typing.operation.local_arguments = {
      {call.index("N"), {row}}, {call.index("C"), {channel}}, {call.index("group"), {group}}};
  return typing.finish();
}

// ---- of weights ----

/// The op divides by the number of norms, of which a rank may have none.
void weight_norm_kernel(LocalCall& call) {
  const bool is_backward = call.schema().arguments()[0].name() == "grad_w";
  const at::Tensor v = call.tensor(is_backward ? "saved_v" : "v");
  if (v.numel() > 0) {
    on_contiguous({"v", "g", "grad_w", "saved_v", "saved_g", "saved_norms"})(call);
    return;
  }
  call.give({at::empty_like(v), at::empty_like(call.tensor(is_backward ? "saved_g" : "g"))});
}

/// v g / |v|, with a norm for each element of one dim.
TypedResult weight_norm(const OpCall& call) {
  Typing typing(call);
  const bool is_backward = call.index("grad_w") >= 0;
  const Dims dims = typing.of(is_backward ? "saved_v" : "v");
  const int64_t dim = call.dim("dim");
  Dims norms(dims.size());
  for (int64_t i = 0; i < static_cast<int64_t>(dims.size()); ++i) {
    if (i == dim) {
      norms[i] = dims[i];
    } else {
      typing.need(dims[i]);
    }
  }
  typing.set("grad_w", dims);
  for (const auto* argument : {"g", "saved_g", "saved_norms"}) typing.set(argument, norms);
  typing.operation.outputs = {dims, norms};
  typing.operation.kernel = weight_norm_kernel;
  return typing.finish();
}

/// Slices along one dim with a norm of at most `maxnorm`.
TypedResult renorm(const OpCall& call) {
  Typing typing(call);
  const Dims dims = typing.of("self");
  const int64_t dim = call.dim("dim");
  for (int64_t i = 0; i < static_cast<int64_t>(dims.size()); ++i) {
    if (i != dim) typing.need(dims[i]);
  }
  typing.operation.outputs = {dims};
  return typing.finish();
}

}  // namespace

void add_normalization_rules(RuleTable& rules) {
  rules.add({"aten::native_layer_norm", "aten::native_layer_norm_backward", "aten::_fused_rms_norm",
             "aten::_fused_rms_norm_backward"},
            layer_norm);
  rules.add({"aten::native_group_norm", "aten::native_group_norm_backward"}, group_norm);
  rules.add({"aten::_weight_norm_interface", "aten::_weight_norm_interface_backward"}, weight_norm);
  rules.add({"aten::renorm", "aten::renorm_"}, renorm);
  add_batch_norm_rules(rules);
  add_norm_rules(rules);
}

}  // namespace caravan
