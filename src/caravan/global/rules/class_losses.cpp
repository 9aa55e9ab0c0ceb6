#include <algorithm>

#include <ATen/OpMathType.h>
#include <ATen/core/Reduction.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/global/local_call.h"
#include "caravan/global/rules/rules.h"
#include "caravan/global/rules/typing.h"

namespace caravan {
namespace {

/// The labels of nll_loss and nll_loss2d: classes, and the positions that have a target each.
struct ClassLabels {
  std::string classes;
  std::string positions;
  int64_t dim = 0;  ///< of the classes
  int64_t num_classes = 0;
};

/// What a rank has of the classes: the targets among them, and their weights.
struct OwnTargets {
  at::Tensor index;    ///< of a class of the piece, along the dim of the classes
  at::Tensor is_own;   ///< false: the class is another rank's, or is ignored
  at::Tensor is_used;  ///< the target is not ignored
  at::Tensor weight;   ///< of the target, 0 where it is not own; undefined: all 1
};

void check_targets(const LocalCall& call, const at::Tensor& target, const at::Tensor& is_used, int64_t num_classes) {
  const at::Tensor is_wrong = target.lt(0).logical_or_(target.ge(num_classes)).logical_and_(is_used);
  if (!is_wrong.any().item<bool>()) return;
  throw ShapeError({call.name(), "target", fmt::format("a class lies outside the {} there are", num_classes),
                    call.state().mesh().where(), "give classes from 0 on, or ignore_index"});
}

OwnTargets own_targets(LocalCall& call, const ClassLabels& labels) {
  const at::Tensor target = call.tensor("target").to(at::kLong);
  const at::Tensor weight = call.tensor("weight");
  const LabelRange range =
      labels.classes.empty() ? LabelRange{0, labels.num_classes, labels.num_classes} : call.range(labels.classes[0]);
  OwnTargets own;
  own.is_used = target.ne(call.argument("ignore_index").toInt());
  check_targets(call, target, own.is_used, labels.num_classes);
  own.is_own = own.is_used.logical_and(target.ge(range.begin)).logical_and_(target.lt(range.begin + range.length));
  own.index = (target - range.begin).clamp_(0, std::max<int64_t>(0, range.length - 1));
  if (weight.defined() && range.length > 0) {
    own.weight = weight.index_select(0, own.index.flatten()).view_as(own.index) * own.is_own;
  } else if (weight.defined()) {
    own.weight = at::zeros(own.index.sizes(), weight.options());
  }
  own.index = own.index.unsqueeze(labels.dim);
  return own;
}

/// Each rank picks the targets among its classes, so that the ranks' results sum to the loss; a mean divides by the
/// weight of all targets, of which an all-reduce of one number is taken where not every rank knows it.
void nll_loss_kernel(LocalCall& call, const ClassLabels& labels) {
  const at::Tensor self = call.tensor("self");
  const int64_t reduction = call.argument("reduction").toInt();
  const OwnTargets own = own_targets(call, labels);
  at::Tensor picked = own.is_own.to(self.scalar_type()).zero_();
  if (self.size(labels.dim) > 0) {
    picked = at::where(own.is_own, self.gather(labels.dim, own.index).squeeze(labels.dim).neg(), picked);
    if (own.weight.defined()) picked = at::where(own.is_own, picked * own.weight, picked);
  }
  if (reduction == at::Reduction::None && self.dim() > 1) {
    call.give({picked, at::zeros({}, self.options())});
    return;
  }
  at::Tensor total;
  if (own.weight.defined()) {
    total = call.sum_over(labels.positions + labels.classes, own.weight.sum(at::kDouble));
  } else {
    total = call.sum_over(labels.positions, own.is_used.sum(at::kDouble));
  }
  at::Tensor loss = picked.sum(at::toOpMathType(self.scalar_type()));
  if (reduction == at::Reduction::Mean) loss = loss / total.to(loss.scalar_type());
  call.give({loss.to(self.scalar_type()), total.to(self.scalar_type())});
}

/// Names the dims of scores, targets and weights in `typing`. `positions`: those of the scores without the classes.
ClassLabels name_classes(const OpCall& call, Typing& typing, const Dims& dims, Dims& positions) {
  ClassLabels labels;
  labels.dim = dims.size() == 1 ? 0 : 1;
  labels.classes = dims[labels.dim];
  labels.num_classes = call.sizes(typing.operand_of("self"))[labels.dim];
  positions = dims;
  positions.erase(positions.begin() + labels.dim);
  labels.positions = labels_of(positions);
  typing.set("target", positions);
  typing.set("weight", {labels.classes});
  typing.need(labels.classes);
  return labels;
}

TypedResult nll_loss(const OpCall& call) {
  Typing typing(call);
  const Dims dims = typing.of("self");
  if (dims.empty()) return std::nullopt;
  Dims positions;
  const ClassLabels labels = name_classes(call, typing, dims, positions);
  const bool keeps = call.integer("reduction") == at::Reduction::None && dims.size() > 1;
  typing.operation.outputs = {keeps ? positions : Dims{}, {}};
  typing.operation.whole_outputs = {1};
  typing.operation.terms = {{typing.operand_of("self")}};
  typing.operation.constant_outputs = {1};
  if (dims.size() == 1 && call.num_dims(typing.operand_of("target")) == 1) return typing.finish();
  const bool is_summed = call.integer("reduction") != at::Reduction::None;
  std::string kernel_labels = has_blocks(call) ? "" : labels.classes;
  kernel_labels += is_summed ? labels.positions : "";
  if (kernel_labels.empty()) return typing.finish();
  typing.operation.kernel_labels = kernel_labels;
  typing.operation.kernel = [labels](LocalCall& local) { nll_loss_kernel(local, labels); };
  return typing.finish();
}

/// Each rank writes the gradients of the targets among its classes.
void nll_loss_backward_kernel(LocalCall& call, const ClassLabels& labels) {
  const at::Tensor self = call.tensor("self");
  const int64_t reduction = call.argument("reduction").toInt();
  const OwnTargets own = own_targets(call, labels);
  at::Tensor grad = call.tensor("grad_output");
  if (reduction == at::Reduction::Mean) grad = grad / call.tensor("total_weight");
  at::Tensor value = at::where(own.is_own, grad.neg(), at::zeros({}, grad.options()));
  if (own.weight.defined()) value = at::where(own.is_own, value * own.weight, value);
  const at::Tensor result = at::zeros_like(self);
  if (self.size(labels.dim) > 0)
    result.scatter_(labels.dim, own.index, value.unsqueeze(labels.dim).to(self.scalar_type()));
  call.give({result});
}

TypedResult nll_loss_backward(const OpCall& call) {
  Typing typing(call);
  const Dims dims = typing.of("self");
  if (dims.empty()) return std::nullopt;
  Dims positions;
  const ClassLabels labels = name_classes(call, typing, dims, positions);
  const bool keeps = call.integer("reduction") == at::Reduction::None && dims.size() > 1;
  typing.set("grad_output", keeps ? positions : Dims{});
  typing.set("total_weight", {});
  typing.operation.outputs = {dims};
  typing.operation.terms = {{0}};
  typing.operation.unread = {typing.operand_of("self")};
  if (call.integer("reduction") != at::Reduction::Mean) {
    typing.operation.unread.push_back(typing.operand_of("total_weight"));
  }
  if (dims.size() == 1 && call.num_dims(typing.operand_of("target")) == 1) return typing.finish();
  if (labels.classes.empty() || has_blocks(call)) return typing.finish();
  typing.operation.kernel_labels = labels.classes;
  typing.operation.kernel = [labels](LocalCall& local) { nll_loss_backward_kernel(local, labels); };
  return typing.finish();
}

}  // namespace

void add_class_loss_rules(RuleTable& rules) {
  rules.add({"aten::nll_loss_forward", "aten::nll_loss2d_forward"}, nll_loss);
  rules.add({"aten::nll_loss_backward", "aten::nll_loss2d_backward"}, nll_loss_backward);
}

}  // namespace caravan
