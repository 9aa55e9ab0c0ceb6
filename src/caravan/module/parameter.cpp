#include "caravan/module/parameter.h"

#include <functional>
#include <numeric>
#include <utility>

#include "caravan/base/error.h"

namespace caravan {

Parameter::Parameter(std::string name, ParameterSpec spec) : name_(std::move(name)), spec_(std::move(spec)) {}

int64_t Parameter::num_elements() const noexcept {
  return std::accumulate(spec_.shape.begin(), spec_.shape.end(), int64_t{1}, std::multiplies<>());
}

void Parameter::set_rest(at::Tensor rest, Layout layout) {
  rest_ = std::move(rest);
  rest_layout_ = std::move(layout);
}

const at::Tensor& Parameter::compute() const {
  if (!compute_.defined()) {
    throw InternalError(
        {.op = "parameter",
         .subject = name_,
         .fact = "used while it has no compute tensor",
         .where = "",
         .action = "materialise the model first; a technique that frees parameters must gather them before use"});
  }
  return compute_;
}

void Parameter::set_compute(at::Tensor compute) {
  if (computes_at_rest_ && compute.defined() && !compute.is_same(rest_)) {
    throw UsageError({.op = "parameter",
                      .subject = name_,
                      .fact = "belongs to a torch::nn::Module, which computes with the parameter itself",
                      .where = "",
                      .action = "use a technique that keeps the compute tensor, or write the model in this library's "
                                "layers"});
  }
  compute_ = std::move(compute);
}

void Parameter::set_requires_grad(bool requires_grad) {
  requires_grad_ = requires_grad;
  for (at::Tensor* tensor : {&rest_, &compute_}) {
    if (tensor->defined() && tensor->is_leaf()) tensor->set_requires_grad(requires_grad);
  }
}

}  // namespace caravan
