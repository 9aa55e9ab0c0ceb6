#include "caravan/session/state_visitors.h"

#include <algorithm>
#include <cctype>
#include <utility>

#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/text.h"

namespace caravan {
namespace {

size_t index_of(const at::Tensor& parameter, const std::vector<Parameter*>& parameters, const std::string& of) {
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i]->sharded().is_same(parameter)) return i;
  }
  throw UsageError({"checkpoint", of, "visits a tensor that is not a parameter of the model as it rests", "",
                    "make the optimizer from model.parameters(), or whole_parameters(), and visit those"});
}

[[noreturn]] void refuse_twice(const std::string& subject) {
  throw UsageError({"checkpoint", subject, "is visited twice", "", "give all that is kept a name of its own"});
}

}  // namespace

void check_attached_name(const std::string& name, const std::string& of) {
  const bool is_plain = !name.empty() && std::ranges::all_of(name, [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_';
  });
  if (is_plain) return;
  throw UsageError({"attach", of.empty() ? "'" + name + "'" : fmt::format("{}, '{}'", of, name),
                    "is not a name of letters, digits, - and _", "", "give it another name"});
}

bool is_here(const Parameter& parameter) { return parameter.sharded().numel() > 0; }

void StateChecker::state(const std::string& name, const at::Tensor& parameter, at::Tensor& /*tensor*/) {
  check_attached_name(name, of_);
  check_(name, *parameters_[index_of(parameter, parameters_, of_)]);
}

void StateCollector::moment(const std::string& name, const at::Tensor& parameter, at::Tensor& tensor) {
  check_attached_name(name, of_);
  const size_t index = index_of(parameter, parameters_, of_);
  const std::string subject = fmt::format("{}, {} of {}", of_, name, parameters_[index]->name());
  if (tensor.defined() && (tensor.sizes() != parameter.sizes() || tensor.scalar_type() != parameter.scalar_type())) {
    throw UsageError(
        {"checkpoint", subject,
         fmt::format("is {} [{}], and the parameter {} [{}]", c10::toString(tensor.scalar_type()), join(tensor.sizes()),
                     c10::toString(parameter.scalar_type()), join(parameter.sizes())),
         "",
         "keep moments in the shape and the dtype of their parameters, and other tensors by visit.state() in place of "
         "visit.moment()"});
  }
  if (!moments[name].emplace(index, tensor).second) refuse_twice(subject);
}

void StateCollector::state(const std::string& name, const at::Tensor& parameter, at::Tensor& tensor) {
  check_attached_name(name, of_);
  const size_t index = index_of(parameter, parameters_, of_);
  if (!is_here(*parameters_[index])) return;
  if (states[name].emplace(index, tensor).second) return;
  refuse_twice(fmt::format("{}, {} of {}", of_, name, parameters_[index]->name()));
}

void StateCollector::number(const std::string& name, int64_t& value) { add(name, at::tensor({value})); }
void StateCollector::number(const std::string& name, double& value) { add(name, at::tensor({value}, at::kDouble)); }

void StateCollector::add(const std::string& name, at::Tensor value) {
  check_attached_name(name, of_);
  if (!numbers.emplace(name, std::move(value)).second) refuse_twice(of_ + ", " + name);
}

void StateLoader::moment(const std::string& name, const at::Tensor& parameter, at::Tensor& tensor) {
  const Parameter* of = parameters_[index_of(parameter, parameters_, of_)];
  const at::Tensor& saved = find_(fmt::format("moment.{}.{}", name, of->whole_name()), of);
  if (tensor.defined()) {
    tensor.copy_(saved);
  } else {
    tensor = saved.clone();
  }
}

void StateLoader::state(const std::string& name, const at::Tensor& parameter, at::Tensor& tensor) {
  const Parameter& of = *parameters_[index_of(parameter, parameters_, of_)];
  if (!is_here(of)) return;
  const at::Tensor& saved = find_(fmt::format("state.{}.{}", name, of.whole_name()), nullptr);
  if (!saved.defined()) {
    tensor = at::Tensor();
  } else if (tensor.defined() && tensor.sizes() == saved.sizes()) {
    tensor.copy_(saved);
  } else {
    tensor = saved.to(parameter.device(), saved.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
  }
}

void StateLoader::number(const std::string& name, int64_t& value) {
  value = find_("number." + name, nullptr).item<int64_t>();
}
void StateLoader::number(const std::string& name, double& value) {
  value = find_("number." + name, nullptr).item<double>();
}

}  // namespace caravan
