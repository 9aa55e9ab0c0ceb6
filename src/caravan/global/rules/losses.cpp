#include <functional>
#include <numeric>

#include <ATen/core/Reduction.h>
#include <ATen/core/Tensor.h>

#include "caravan/global/local_call.h"
#include "caravan/global/rules/rules.h"
#include "caravan/global/rules/typing.h"

namespace caravan {
namespace {

double elements(const std::vector<int64_t>& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), 1.0, std::multiplies<>());
}

/// The op has divided by what the piece has, but must by what the whole has. `own`: of the piece; an empty piece has 0.
void divide_by_whole(LocalCall& local, double own, double whole) {
  local.run();
  const at::Tensor result = local.result().toTensor();
  if (own == 0) {
    result.zero_();
  } else {
    result.mul_(own / whole);
  }
}

std::vector<int64_t> broadcast(const std::vector<int64_t>& a, const std::vector<int64_t>& b) {
  const std::vector<int64_t>& longer = a.size() < b.size() ? b : a;
  const std::vector<int64_t>& shorter = a.size() < b.size() ? a : b;
  std::vector<int64_t> sizes = longer;
  const size_t skipped = longer.size() - shorter.size();
  for (size_t dim = 0; dim < shorter.size(); ++dim) {
    if (shorter[dim] != 1) sizes[skipped + dim] = shorter[dim];
  }
  return sizes;
}

/// Labels of an argument that is broadcast to `dims`.
void set_broadcast(Typing& typing, const OpCall& call, std::string_view argument, const Dims& dims) {
  const int i = typing.operand_of(argument);
  if (i < 0 || call.sizes(i).size() > dims.size()) return;
  typing.set(argument, Dims(dims.end() - call.num_dims(i), dims.end()));
}

// ---- of each element: mse_loss, smooth_l1_loss, huber_loss, binary_cross_entropy, soft_margin_loss ----

std::vector<int64_t> broadcast_sizes(const OpCall& call) {
  std::vector<int64_t> sizes;
  for (const auto* argument : {"self", "target", "weight", "pos_weight"}) {
    const int i = call.index(argument) < 0 ? -1 : call.operand_of(argument);
    if (i >= 0) sizes = broadcast(sizes, call.sizes(i));
  }
  return sizes;
}

TypedResult element_loss(const OpCall& call) {
  Typing typing(call);
  const std::vector<int64_t> sizes = broadcast_sizes(call);
  const Dims dims = typing.of(sizes);
  for (const auto* argument : {"self", "target", "weight", "pos_weight"}) set_broadcast(typing, call, argument, dims);
  const int64_t reduction = call.integer("reduction", at::Reduction::Mean);
  typing.operation.outputs = {reduction == at::Reduction::None ? dims : Dims{}};
  if (reduction != at::Reduction::Mean) return typing.finish();
  typing.operation.kernel_labels = labels_of(dims);
  if (typing.operation.kernel_labels.empty()) return typing.finish();
  typing.operation.kernel = [whole = elements(sizes)](LocalCall& local) {
    std::vector<int64_t> own;
    for (const auto& argument : local.schema().arguments()) {
      const bool counts = argument.name() == "self" || argument.name() == "target" || argument.name() == "weight" ||
                          argument.name() == "pos_weight";
      if (!counts) continue;
      const at::Tensor tensor = local.tensor(argument.name());
      if (tensor.defined()) own = broadcast(own, tensor.sizes().vec());
    }
    divide_by_whole(local, elements(own), whole);
  };
  return typing.finish();
}

/// Linear in the gradient, which is one number unless nothing was reduced. A mean divides by the elements of `self`.
TypedResult element_loss_backward(const OpCall& call) {
  Typing typing(call);
  std::vector<int64_t> sizes = broadcast_sizes(call);
  const int64_t reduction = call.integer("reduction", at::Reduction::Mean);
  const std::vector<int64_t> grad = call.sizes(typing.operand_of("grad_output"));
  sizes = broadcast(sizes, grad);
  const Dims dims = typing.of(sizes);
  for (const auto* argument : {"grad_output", "self", "target", "weight"}) set_broadcast(typing, call, argument, dims);
  typing.operation.outputs = {dims};
  typing.operation.terms = {{0}};
  if (reduction != at::Reduction::Mean) return typing.finish();
  const std::vector<int64_t> self = call.sizes(typing.operand_of("self"));
  typing.operation.kernel_labels = labels_of(dims);
  if (typing.operation.kernel_labels.empty()) return typing.finish();
  typing.operation.kernel = [whole = elements(self)](LocalCall& local) {
    divide_by_whole(local, elements(local.tensor("self").sizes().vec()), whole);
  };
  return typing.finish();
}

// ---- of each row, over its classes: multi_margin_loss, multilabel_margin_loss ----

/// Rows are independent. The losses of all classes of a row are one number. `self`: [N, C] or [C].
TypedResult margin_loss(const OpCall& call) {
  Typing typing(call);
  const Dims dims = typing.of("self");
  const std::vector<int64_t> sizes = call.sizes(typing.operand_of("self"));
  const Dims rows(dims.begin(), dims.size() == 2 ? dims.begin() + 1 : dims.begin());
  if (!dims.empty()) typing.need(dims.back());
  const bool is_multilabel = call.index("is_target") >= 0 || call.schema().returns().size() == 2;
  typing.set("target", is_multilabel ? dims : rows);
  typing.set("is_target", dims);
  if (!dims.empty()) typing.set("weight", {dims.back()});
  const int64_t reduction = call.integer("reduction", at::Reduction::Mean);
  const bool is_backward = call.index("grad_output") >= 0;
  if (is_backward) {
    typing.set("grad_output", reduction == at::Reduction::None ? rows : Dims{});
    typing.operation.outputs = {dims};
    typing.operation.terms = {{0}};
  } else {
    typing.operation.outputs = {reduction == at::Reduction::None ? rows : Dims{}};
    if (is_multilabel) typing.operation.outputs.push_back(dims);
  }
  if (labels_of(rows).empty()) return typing.finish();
  const bool is_mean = reduction == at::Reduction::Mean;
  typing.operation.kernel = [is_mean, whole = static_cast<double>(sizes[0])](LocalCall& local) {
    const auto own = static_cast<double>(local.tensor("self").size(0));
    divide_by_whole(local, own, is_mean ? whole : own);  // the op writes nothing where there are no rows
  };
  return typing.finish();
}

}  // namespace

void add_loss_rules(RuleTable& rules) {
  rules.add({"aten::mse_loss", "aten::smooth_l1_loss", "aten::huber_loss", "aten::binary_cross_entropy",
             "aten::soft_margin_loss", "aten::binary_cross_entropy_with_logits"},
            element_loss);
  rules.add({"aten::mse_loss_backward", "aten::smooth_l1_loss_backward", "aten::huber_loss_backward",
             "aten::binary_cross_entropy_backward", "aten::soft_margin_loss_backward"},
            element_loss_backward);
  rules.add({"aten::multi_margin_loss", "aten::multi_margin_loss_backward", "aten::multilabel_margin_loss_forward",
             "aten::multilabel_margin_loss_backward"},
            margin_loss);
  add_class_loss_rules(rules);
  add_distance_rules(rules);
}

}  // namespace caravan
