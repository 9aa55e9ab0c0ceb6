#include <limits>

#include <ATen/core/Tensor.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/full.h>
#include <ATen/ops/real.h>
#include <ATen/ops/sum.h>

#include "caravan/global/local_call.h"
#include "caravan/global/rules/reduced.h"
#include "caravan/global/rules/rules.h"
#include "caravan/global/rules/typing.h"

namespace caravan {
namespace {

at::Tensor exponents_of(const at::Tensor& x) {
  const at::ScalarType type = x.scalar_type();
  if (type == at::kHalf || type == at::kBFloat16) return x.to(at::kFloat);
  return at::isIntegralType(type, true) ? x.to(c10::get_default_dtype_as_scalartype()) : x;
}

/// Maxima, of real parts, over dims that are cut: of the whole, with those dims as of one element.
at::Tensor whole_maximum(LocalCall& call, std::string_view labels, const at::Tensor& x,
                         const std::vector<int64_t>& dims) {
  const at::Tensor real = x.is_complex() ? at::real(x) : x;
  std::vector<int64_t> sizes = x.sizes().vec();
  bool is_empty = false;
  for (const int64_t dim : dims) {
    is_empty = is_empty || sizes[dim] == 0;
    sizes[dim] = 1;
  }
  const at::Tensor own =
      is_empty ? at::full(sizes, -std::numeric_limits<double>::infinity(), real.options()) : at::amax(real, dims, true);
  return call.max_over(labels, own);
}

// ---- softmax ----

/// Along dim `dim` of operand 0, which is `whole` unless the kernel runs.
TypedCall along_dim(const OpCall& call, const LocalKernel& kernel) {
  Labels labels;
  TypedCall operation;
  const Dims dims = labels.of(call.sizes(0));
  operation.inputs.assign(call.index("grad_output") < 0 ? 1 : 2, dims);
  operation.outputs = {dims};
  if (dims.empty()) return operation;
  const std::string label = dims[call.dim("dim")];
  operation.whole = operation.kernel_labels = label;
  if (!label.empty()) operation.kernel = kernel;
  return operation;
}

enum class Softmax : uint8_t { plain, log, safe };

/// All-reduces of the maxima and of the sums of exponentials.
TypedResult softmax(const OpCall& call, Softmax kind) {
  if (call.num_dims(0) == 0) return along_dim(call, nullptr);
  const int64_t dim = call.dim("dim");
  TypedCall operation = along_dim(call, nullptr);
  const std::string label = operation.whole;
  if (label.empty()) return operation;
  operation.kernel = [dim, label, kind](LocalCall& local) {
    const at::Tensor self = local.tensor("self");
    at::ScalarType type = self.scalar_type();
    if (kind == Softmax::safe) {
      const c10::IValue& dtype = local.argument("dtype");
      type = dtype.isNone() ? type : dtype.toScalarType();
    } else if (local.argument("half_to_float").toBool()) {
      type = at::kFloat;
    }
    const at::Tensor x = exponents_of(kind == Softmax::safe ? self.to(type) : self);
    const at::Tensor maximum = whole_maximum(local, label, x, {dim});
    const at::Tensor shifted = x - maximum;
    const at::Tensor exponentials = shifted.exp();
    const at::Tensor sum = local.sum_over(label, at::sum(exponentials, {dim}, true));
    at::Tensor result = kind == Softmax::log ? shifted - sum.log() : exponentials / sum;
    if (kind == Softmax::safe) result.masked_fill_(maximum == -std::numeric_limits<double>::infinity(), 0);
    local.give({result.to(type)});
  };
  return operation;
}

/// Linear in the gradient. An all-reduce of the sum that is taken out of it.
TypedResult softmax_backward(const OpCall& call, bool is_log) {
  TypedCall operation = along_dim(call, nullptr);
  operation.terms = {{0}};
  const std::string label = operation.whole;
  if (label.empty()) return operation;
  operation.kernel = [dim = call.dim("dim"), label, is_log](LocalCall& local) {
    const at::Tensor grad = exponents_of(local.tensor("grad_output"));
    const at::Tensor output = exponents_of(local.tensor("output"));
    const at::ScalarType type = local.argument("input_dtype").toScalarType();
    const at::Tensor weighted = is_log ? grad : grad * output;
    const at::Tensor sum = local.sum_over(label, at::sum(weighted, {dim}, true));
    local.give({(is_log ? grad - output.exp() * sum : weighted - output * sum).to(type)});
  };
  return operation;
}

/// The dims of a mask: of the whole, of the last two dims, or of the first and the last, as `mask_type` says.
Dims mask_dims(const OpCall& call, const Dims& dims, const std::vector<int64_t>& mask) {
  if (mask.size() == dims.size()) return dims;
  if (dims.size() != 4 || mask.size() != 2 || call.index("mask_type") < 0) return {};
  if (call.integer("mask_type", 2) == 0) return {dims[2], dims[3]};
  return call.integer("mask_type", 2) == 1 ? Dims{dims[0], dims[3]} : Dims{};
}

TypedResult masked_softmax(const OpCall& call) {
  Typing typing(call);
  const bool is_backward = call.index("grad_output") >= 0;
  const Dims dims = typing.of(is_backward ? "grad_output" : "self");
  typing.set("output", dims);
  if (!dims.empty()) {
    const int64_t last = call.num_dims(0) - 1;
    typing.need(dims[call.has("dim") ? call.dim("dim") : last]);
    typing.need(dims[last]);
  }
  // The op compares a mask of two dims with the number of queries.
  if (call.num_dims(typing.operand_of("mask")) != call.num_dims(0) && dims.size() == 4) typing.need(dims[2]);
  typing.set("mask", mask_dims(call, dims, call.sizes(typing.operand_of("mask"))));
  typing.operation.outputs = {dims};
  if (is_backward) typing.operation.terms = {{0}};
  return typing.finish();
}

// ---- others ----

TypedResult logsumexp(const OpCall& call) {
  const std::vector<int64_t> dims = reduced_dims(call);
  TypedCall operation = reduction_by_kernel(call, dims);
  const std::string reduced = operation.kernel_labels;
  if (reduced.empty()) return operation;
  operation.kernel = [dims, reduced, keeps = call.flag("keepdim")](LocalCall& local) {
    const at::Tensor self = local.tensor("self");
    const at::Tensor x = exponents_of(self);
    at::Tensor maximum = whole_maximum(local, reduced, x, dims);
    maximum = maximum.masked_fill(maximum.abs() == std::numeric_limits<double>::infinity(), 0);
    at::Tensor sum = local.sum_over(reduced, at::sum((x - maximum).exp(), dims, true)).log().add(maximum);
    if (!keeps) sum = sum.squeeze(dims);
    local.give({at::isIntegralType(self.scalar_type(), true) ? sum : sum.to(self.scalar_type())});
  };
  return operation;
}

/// The buffer is as large as the input, or empty.
TypedResult log_sigmoid(const OpCall& call) {
  Typing typing(call);
  const Dims dims = typing.of("self");
  typing.set("grad_output", dims);
  const int buffer = typing.operand_of("buffer");
  if (call.index("grad_output") >= 0) {
    if (buffer >= 0 && call.sizes(buffer) == call.sizes(typing.operand_of("self"))) typing.set("buffer", dims);
    typing.operation.terms = {{0}};
    typing.operation.outputs = {dims};
  } else {
    typing.operation.outputs = {dims, dims};
  }
  return typing.finish();
}

}  // namespace

void add_softmax_rules(RuleTable& rules) {
  rules.add("aten::_softmax", [](const OpCall& call) { return softmax(call, Softmax::plain); });
  rules.add("aten::_log_softmax", [](const OpCall& call) { return softmax(call, Softmax::log); });
  rules.add("aten::_safe_softmax", [](const OpCall& call) { return softmax(call, Softmax::safe); });
  rules.add("aten::_softmax_backward_data", [](const OpCall& call) { return softmax_backward(call, false); });
  rules.add("aten::_log_softmax_backward_data", [](const OpCall& call) { return softmax_backward(call, true); });
  rules.add({"aten::_masked_softmax", "aten::_masked_softmax_backward"}, masked_softmax);
  rules.add("aten::logsumexp", logsumexp);
  rules.add({"aten::log_sigmoid_forward", "aten::log_sigmoid_backward"}, log_sigmoid);
}

}  // namespace caravan
