#include "tests/global/proof_case.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include <ATen/core/List.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include "caravan/base/text.h"
#include "tests/redistribute/denote.h"

namespace caravan::testing {
namespace {

bool is_continuous(const at::Tensor& tensor) { return tensor.is_floating_point() || tensor.is_complex(); }

/// Appends a value with lists taken apart.
void take_apart(const c10::IValue& value, std::vector<c10::IValue>& values) {
  if (!value.isList()) {
    values.push_back(value);
    return;
  }
  for (const c10::IValue& each : value.toListRef()) values.push_back(each);
}

double largest(const at::Tensor& x) {
  double most = 0;
  const auto* data = x.const_data_ptr<double>();
  for (int64_t i = 0; i < x.numel(); ++i) {
    if (std::isfinite(data[i])) most = std::max(most, std::abs(data[i]));
  }
  return most;
}

at::Tensor as_doubles(const at::Tensor& tensor) {
  if (tensor._is_zerotensor()) return at::zeros(tensor.sizes(), at::kDouble).contiguous();
  const at::Tensor x = tensor.detach().resolve_conj().resolve_neg();
  return (x.is_complex() ? at::view_as_real(x) : x).to(at::kDouble).contiguous();
}

std::string element_difference(const at::Tensor& value, const at::Tensor& expected, double tolerance) {
  const at::Tensor x = as_doubles(value);
  const at::Tensor y = as_doubles(expected);
  // Sums of terms of about 1 may cancel: below 0.01 the error is absolute.
  const double allowed = tolerance * std::max(largest(y), 0.01);
  double worst = 0;
  int64_t at = -1;
  const auto* a = x.const_data_ptr<double>();
  const auto* b = y.const_data_ptr<double>();
  for (int64_t i = 0; i < x.numel(); ++i) {
    if (a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]))) continue;
    const double error = std::abs(a[i] - b[i]);
    if (error <= allowed) continue;
    if (at >= 0 && error <= worst) continue;
    worst = error;
    at = i;
  }
  if (at < 0) return "";
  return fmt::format("element {} is {:.17g} instead of {:.17g}", at, a[at], b[at]);
}

std::string short_text(const c10::IValue& value) {
  if (value.isTensor()) return tensor_text(value.toTensor());
  if (value.isList()) {
    std::vector<std::string> parts;
    for (const c10::IValue& each : value.toListRef()) parts.push_back(short_text(each));
    return "[" + join(parts) + "]";
  }
  std::ostringstream text;
  text << value;
  return text.str();
}

}  // namespace

std::string tensor_text(const at::Tensor& tensor) {
  if (!tensor.defined()) return "undefined";
  std::ostringstream text;
  text << c10::toString(tensor.scalar_type()) << tensor.sizes();
  return text.str();
}

std::string difference(const c10::IValue& value, const c10::IValue& expected, double tolerance, bool checks_elements) {
  if (!expected.isTensor()) {
    if (value.isTensor()) return fmt::format("is {} instead of {}", short_text(value), short_text(expected));
    if (expected.isDouble() && value.isDouble()) {
      const double a = value.toDouble();
      const double b = expected.toDouble();
      const bool is_same = a == b || std::abs(a - b) <= tolerance * std::abs(b) || (std::isnan(a) && std::isnan(b));
      return is_same ? "" : fmt::format("is {:.17g} instead of {:.17g}", a, b);
    }
    const bool is_same = short_text(value) == short_text(expected);
    return is_same ? "" : fmt::format("is {} instead of {}", short_text(value), short_text(expected));
  }
  if (!value.isTensor()) return fmt::format("is {} instead of {}", short_text(value), short_text(expected));
  const at::Tensor& x = value.toTensor();
  const at::Tensor& y = expected.toTensor();
  if (!x.defined() && !y.defined()) return "";
  if (x.defined() != y.defined() || x.scalar_type() != y.scalar_type() || x.sizes() != y.sizes()) {
    return fmt::format("is {} instead of {}", tensor_text(x), tensor_text(y));
  }
  if (!checks_elements || y.numel() == 0) return "";
  if (is_continuous(y)) return element_difference(x, y, tolerance);
  return at::equal(x, y) ? "" : element_difference(x, y, 0);
}

double tolerance_of(const std::string& op, at::ScalarType dtype) {
  (void)op;
  if (dtype == at::kDouble || dtype == at::kComplexDouble) return 1e-12;
  return dtype == at::kFloat || dtype == at::kComplexFloat ? 1e-5 : 2e-2;
}

ProofCase::ProofCase(const OpSample& sample) : sample_(&sample) {
  const auto arguments = sample.arguments();
  const auto& schema = sample.op().schema();
  const auto add = [&](const c10::IValue& value, size_t argument, int element) {
    if (!value.isTensor() || !value.toTensor().defined()) return;
    const auto* alias = schema.arguments()[argument].alias_info();
    operands_.push_back({value.toTensor(), static_cast<int>(argument), element, alias != nullptr && alias->isWrite()});
  };
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!arguments[i].isList()) {
      add(arguments[i], i, -1);
      continue;
    }
    int element = 0;
    for (const c10::IValue& each : arguments[i].toListRef()) add(each, i, element++);
  }
  find_reference();
  if (!is_determined()) return;
  std::vector<bool> all;
  for (const ProofOperand& operand : operands_) all.push_back(is_continuous(operand.value));
  if (find_gradients(all)) return;
  // Some operand has no derivative: those that have one alone.
  std::vector<bool> chosen(all.size(), false);
  for (size_t i = 0; i < all.size(); ++i) {
    std::vector<bool> alone(all.size(), false);
    alone[i] = all[i];
    chosen[i] = all[i] && find_gradients(alone);
  }
  has_gradients_ = false;
  find_gradients(chosen);
}

ProofCase ProofCase::with_values(const std::vector<at::Tensor>& values) const {
  ProofCase other = *this;
  for (size_t i = 0; i < values.size(); ++i) other.operands_[i].value = values[i];
  other.find_reference();
  if (has_gradients_) other.find_gradients(needs_gradient_);
  return other;
}

void ProofCase::find_reference() {
  std::vector<at::Tensor> tensors;
  for (const ProofOperand& operand : operands_) tensors.push_back(operand.value.clone());
  reference_ = call(tensors, nullptr);
  written_.clear();
  for (const c10::IValue& value : reference_.values) {
    written_.push_back(-1);
    for (size_t i = 0; value.isTensor() && value.toTensor().defined() && i < operands_.size(); ++i) {
      if (operands_[i].is_written && value.toTensor().is_same(tensors[i])) written_.back() = static_cast<int>(i);
    }
  }
}

std::string ProofCase::name() const {
  const auto& name = sample_->op().operator_name();
  return name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
}

std::string ProofCase::text() const {
  std::vector<std::string> parts;
  const auto arguments = sample_->arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].isNone()) continue;
    parts.push_back(sample_->op().schema().arguments()[i].name() + "=" + short_text(arguments[i]));
  }
  return name() + "(" + join(parts) + ")";
}

std::vector<c10::IValue> ProofCase::values_of(const std::vector<at::Tensor>& tensors) const {
  c10::Stack given = sample_->arguments();
  for (size_t i = 0; i < operands_.size(); ++i) {
    c10::IValue& argument = given[operands_[i].argument];
    if (operands_[i].element < 0) {
      argument = tensors[i];
    } else if (argument.isTensorList()) {
      argument.toTensorList().set(operands_[i].element, tensors[i]);
    } else {
      argument.toList().set(operands_[i].element, tensors[i]);
    }
  }
  c10::Stack stack = given;
  sample_->op().callBoxed(stack);
  std::vector<c10::IValue> values;
  for (const c10::IValue& each : stack) take_apart(each, values);
  for (size_t i = 0; i < operands_.size(); ++i) {
    if (operands_[i].is_written) values.emplace_back(tensors[i]);
  }
  return values;
}

ProofOutcome ProofCase::call(const std::vector<at::Tensor>& tensors, const Cotangent& cotangent) const {
  ProofOutcome outcome;
  std::vector<at::Tensor> given = tensors;
  std::vector<at::Tensor> leaves;
  std::vector<size_t> owners;
  for (size_t i = 0; cotangent && i < tensors.size(); ++i) {
    if (!needs_gradient_[i]) continue;
    leaves.push_back(tensors[i].detach().requires_grad_());
    owners.push_back(i);
    given[i] = operands_[i].is_written ? leaves.back().clone() : leaves.back();
  }
  outcome.values = values_of(given);
  outcome.gradients.resize(tensors.size());
  if (!cotangent) return outcome;
  std::vector<at::Tensor> outputs;
  std::vector<at::Tensor> cotangents;
  for (size_t i = 0; i < outcome.values.size(); ++i) {
    if (!outcome.values[i].isTensor() || !outcome.values[i].toTensor().defined()) continue;
    const at::Tensor& value = outcome.values[i].toTensor();
    if (!value.requires_grad() || !is_continuous(value)) continue;
    if (std::ranges::any_of(outputs, [&](const at::Tensor& known) { return known.is_same(value); })) continue;
    outputs.push_back(value);
    cotangents.push_back(cotangent(i, value));
  }
  if (outputs.empty()) return outcome;
  const auto gradients = torch::autograd::grad(outputs, leaves, cotangents, std::nullopt, false, true);
  for (size_t i = 0; i < owners.size(); ++i) outcome.gradients[owners[i]] = gradients[i];
  return outcome;
}

bool ProofCase::find_gradients(std::vector<bool> needs_gradient) {
  needs_gradient_ = std::move(needs_gradient);
  cotangents_.assign(reference_.values.size(), {});
  has_gradients_ = false;
  std::vector<at::Tensor> tensors;
  for (const ProofOperand& operand : operands_) tensors.push_back(operand.value.clone());
  try {
    reference_.gradients = call(tensors, [&](size_t i, const at::Tensor& value) {
                             const uint64_t seed = 900 + i;
                             at::Tensor cotangent = random_tensor(value.sizes(), seed).to(value.scalar_type());
                             if (value.is_complex()) cotangent = cotangent * c10::complex<double>(0.6, 0.8);
                             return cotangents_[i] = cotangent.to(value.scalar_type());
                           }).gradients;
  } catch (const std::exception&) {
    cotangents_.assign(reference_.values.size(), {});
    return false;
  }
  has_gradients_ = std::ranges::any_of(reference_.gradients, [](const at::Tensor& g) { return g.defined(); });
  return has_gradients_;
}

}  // namespace caravan::testing
