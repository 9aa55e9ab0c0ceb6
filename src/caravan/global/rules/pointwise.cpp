#include <algorithm>
#include <map>
#include <string>

#include <ATen/core/enum_tag.h>
#include <c10/core/Scalar.h>

#include "caravan/global/rules/rules.h"

namespace caravan {
namespace {

using Terms = std::vector<std::vector<int>>;

/// Of what pointwise ops are sums of products, by the name without "aten::", overload and trailing "_".
const std::map<std::string, Terms, std::less<>>& linear_ops() {
  static const std::map<std::string, Terms, std::less<>> all{
      {"add", {{0}, {1}}},
      {"sub", {{0}, {1}}},
      {"rsub", {{0}, {1}}},
      {"mul", {{0, 1}}},
      {"div", {{0}}},
      {"neg", {{0}}},
      {"true_divide", {{0}}},
      {"positive", {{0}}},
      {"clone", {{0}}},
      {"where", {{1}, {2}}},
      {"addcmul", {{0}, {1, 2}}},
      {"addcdiv", {{0}, {1}}},
      {"_to_copy", {{0}}},
      {"zero", {{0}}},
      {"conj_physical", {{0}}},
      {"real", {{0}}},
      {"imag", {{0}}},
      {"alias", {{0}}},
      {"detach", {{0}}},
      {"lift_fresh", {{0}}},
      {"_conj_physical", {{0}}},
      {"deg2rad", {{0}}},
      {"rad2deg", {{0}}},
      {"xlogy", {{0}}},
      {"native_dropout_backward", {{0}}},
      {"_conj", {{0}}},
      {"_neg_view", {{0}}},
      {"_lazy_clone", {{0}}},
      {"contiguous", {{0}}},
      {"to", {{0}}},
      {"ldexp", {{0}}},
  };
  return all;
}

/// "aten::_foreach_add_.List" as "add".
std::string base_name(const std::string& name) {
  std::string base = name.substr(name.find("::") + 2);
  if (base.starts_with("_foreach_")) base = base.substr(9);
  if (base.size() > 1 && base.back() == '_' && !base.ends_with("__")) base.pop_back();
  return base;
}

bool adds_a_number(const OpCall& call, const std::string& base) {
  if (base != "add" && base != "sub" && base != "rsub") return false;
  return call.num_read() < 2;  // add.Scalar: once per rank
}

Terms terms_of(const OpCall& call) {
  const std::string base = base_name(call.schema().name());
  if (base == "masked_fill") {
    const bool is_zero = call.schema().overload_name() == "Scalar" && call.number("value") == 0;
    return is_zero ? Terms{{0}} : Terms{};
  }
  if (base == "xlogy" && !call.schema().arguments()[0].type()->isSubtypeOf(*c10::TensorType::get())) return {};
  if (base == "lerp") return call.num_read() == 2 ? Terms{{0}, {1}} : Terms{};
  if (base == "fill")
    return call.has("value") && call.num_operands() == 1 && call.number("value") == 0 ? Terms{{0}} : Terms{};
  if (base == "div" && call.has("rounding_mode")) return {};
  if (adds_a_number(call, base)) return {};
  const auto found = linear_ops().find(base);
  if (found == linear_ops().end()) {
    // The gradient of a pointwise op is linear in the gradient that it is given.
    return base.ends_with("_backward") && call.schema().arguments().front().name().starts_with("grad") ? Terms{{0}}
                                                                                                       : Terms{};
  }
  Terms terms;
  for (const auto& term : found->second) {
    std::vector<int> present;
    for (const int i : term) {
      if (i < call.num_read()) present.push_back(i);
    }
    if (!present.empty()) terms.push_back(std::move(present));
  }
  return terms;
}

bool has_tag(const std::string& name, const std::string& overload) {
  const auto op = c10::Dispatcher::singleton().findSchema({name, overload});
  return op && op->hasTag(at::Tag::pointwise);
}

}  // namespace

/// ATen tags some ops only where they make their result: eq.Tensor, but neither eq_.Tensor nor eq.Tensor_out;
/// __rshift__, but not __irshift__.
bool is_pointwise(const c10::OperatorHandle& op) {
  if (op.hasTag(at::Tag::pointwise)) return true;
  std::string name = op.schema().name();
  std::string overload = op.schema().overload_name();
  for (const std::string_view suffix : {"grad_input", "_out", "out"}) {
    if (!overload.ends_with(suffix)) continue;
    overload.resize(overload.size() - suffix.size());
    return has_tag(name, overload);
  }
  if (name.starts_with("aten::__i")) {
    name.erase(name.find("__i") + 2, 1);
    return has_tag(name, overload);
  }
  if (!name.ends_with('_') || name.ends_with("__")) return false;
  name.pop_back();
  return has_tag(name, overload);
}

bool is_foreach(std::string_view name) {
  return name.starts_with("aten::_foreach_") || name.starts_with("aten::_fused_ada") ||
         name.starts_with("aten::_fused_sgd");
}

TypedCall pointwise(const OpCall& call) {
  size_t num_dims = 0;
  for (const GlobalOperand& operand : call.operands()) num_dims = std::max(num_dims, operand.sizes.size());
  Labels labels;
  const Dims letters = labels.next(static_cast<int64_t>(num_dims));
  std::vector<bool> is_wide(num_dims, false);
  const auto is_one = [](const GlobalOperand& operand, size_t dim) { return operand.sizes[dim] == 1; };
  for (const GlobalOperand& operand : call.operands()) {
    const size_t skipped = num_dims - operand.sizes.size();
    for (size_t dim = 0; dim < operand.sizes.size(); ++dim) {
      if (!is_one(operand, dim)) is_wide[skipped + dim] = true;
    }
  }
  const bool is_clone = call.schema().name() == "aten::clone";
  TypedCall operation;
  Dims output(num_dims, "");
  for (const GlobalOperand& operand : call.operands()) {
    const size_t skipped = num_dims - operand.sizes.size();
    Dims dims;
    for (size_t dim = 0; dim < operand.sizes.size(); ++dim) {
      // A cut of one element, of which one rank has all, is like any other unless it is broadcast. A clone gives it up:
      // it may be squeezed in place.
      const bool is_cut_one = !is_wide[skipped + dim] && operand.is_cut(dim) && !is_clone;
      dims.push_back(is_one(operand, dim) && !is_cut_one ? "" : letters[skipped + dim]);
      if (!dims.back().empty()) output[skipped + dim] = dims.back();
    }
    operation.inputs.push_back(std::move(dims));
  }
  operation.outputs.assign(call.schema().returns().size(), output);
  operation.terms = terms_of(call);
  if (base_name(call.schema().name()) == "copy" && call.schema().name().ends_with("_")) {
    operation.overwritten = {0};
    operation.terms = {{1}};
  }
  for (int i = 0; i < call.num_operands(); ++i) {
    if (call.schema().arguments()[call.operand(i).argument].is_out()) operation.overwritten.push_back(i);
  }
  return operation;
}

void add_pointwise_rules(RuleTable& rules) {
  // Pointwise, but without ATen's tag, or with other operands than its tensors.
  rules.add({"aten::copy_",
             "aten::_to_copy",
             "aten::clone",
             "aten::zero_",
             "aten::alias",
             "aten::detach",
             "aten::lift_fresh",
             "aten::fill_.Scalar",
             "aten::fill_.Tensor",
             "aten::where.self",
             "aten::where.self_out",
             "aten::masked_fill",
             "aten::masked_fill_",
             "aten::native_dropout_backward",
             "aten::isnan",
             "aten::conj_physical",
             "aten::xlogy_",
             "aten::_conj",
             "aten::_neg_view",
             "aten::contiguous",
             "aten::detach_copy",
             "aten::alias_copy",
             "aten::where.ScalarSelf",
             "aten::where.ScalarOther",
             "aten::threshold",
             "aten::threshold_",
             "aten::threshold_backward",
             "aten::prelu",
             "aten::_prelu_kernel",
             "aten::_prelu_kernel_backward",
             "aten::hardswish",
             "aten::hardswish_",
             "aten::hardswish_backward",
             "aten::elu_backward",
             "aten::mish_backward",
             "aten::hardtanh_backward",
             "aten::hardsigmoid_backward",
             "aten::softplus_backward",
             "aten::leaky_relu_backward",
             "aten::rrelu_with_noise_backward",
             "aten::softshrink_backward",
             "aten::hardshrink_backward",
             "aten::logit_backward",
             "aten::isposinf",
             "aten::isneginf"},
            [](const OpCall& call) -> std::optional<TypedCall> { return pointwise(call); });
}

}  // namespace caravan
