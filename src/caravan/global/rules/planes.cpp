#include "caravan/global/rules/planes.h"

#include <algorithm>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "caravan/global/local_call.h"

namespace caravan {
namespace {

struct Place {
  std::string argument;
  Dims dims;
};

/// What a kernel on one zero of each label that this rank has none of needs of the type of the op.
struct Padding {
  std::vector<Place> tensors, sizes;
  std::vector<Dims> outputs;
  std::string labels;      ///< that may be cut
  std::string own_labels;  ///< of `kernel`
  LocalKernel kernel;

  void run(LocalCall& local) const {
    const bool has_kernel =
        kernel &&
        (own_labels.empty() || std::ranges::any_of(own_labels, [&](char label) { return local.is_cut(label); }));
    if (has_kernel) {
      kernel(local);
    } else {
      local.run();
    }
  }
};

int64_t padded(const std::string& dim, LocalCall& local) {
  int64_t product = 1;
  for (const char label : dim) product *= std::max<int64_t>(1, local.range(label).length);
  return product;
}

bool has_any(const std::string& dim, const std::string& labels) {
  return dim.find_first_of(labels) != std::string::npos;
}

void pad_arguments(const Padding& padding, const std::string& missing, LocalCall& local) {
  for (const Place& place : padding.tensors) {
    const at::Tensor tensor = local.tensor(place.argument);
    std::vector<int64_t> sizes = tensor.sizes().vec();
    bool is_padded = false;
    for (size_t dim = 0; dim < sizes.size(); ++dim) {
      if (!has_any(place.dims[dim], missing)) continue;
      sizes[dim] = padded(place.dims[dim], local);
      is_padded = true;
    }
    if (is_padded) local.argument(place.argument) = at::zeros(sizes, tensor.options());
  }
  for (const Place& place : padding.sizes) {
    c10::IValue& value = local.argument(place.argument);
    if (value.isInt()) {
      if (has_any(place.dims[0], missing)) value = padded(place.dims[0], local);
      continue;
    }
    std::vector<int64_t> sizes = value.toIntVector();
    for (size_t dim = 0; dim < sizes.size(); ++dim) {
      if (has_any(place.dims[dim], missing)) sizes[dim] = padded(place.dims[dim], local);
    }
    value = sizes;
  }
}

/// Takes the arguments out=, in whose place the op gets new ones: some kernels write wrong values to slices.
std::vector<at::Tensor> take_outs(LocalCall& local) {
  std::vector<at::Tensor> outs;
  for (const c10::Argument& argument : local.schema().arguments()) {
    if (!argument.is_out()) continue;
    outs.push_back(local.tensor(argument.name()));
    local.argument(argument.name()) = at::empty({0}, outs.back().options());
  }
  return outs;
}

void write_outs(const std::vector<at::Tensor>& outs, LocalCall& local) {
  for (size_t i = 0; i < outs.size(); ++i) {
    const at::Tensor value = local.result(i).isTensor() ? local.result(i).toTensor() : at::Tensor();
    if (!value.defined()) {
      local.result(i) = outs[i];
      continue;
    }
    if (outs[i].sizes() != value.sizes()) outs[i].resize_(value.sizes());
    local.result(i) = outs[i].copy_(value);
  }
}

void run_padded(const Padding& padding, LocalCall& local) {
  std::string missing;
  for (const char label : padding.labels) {
    if (local.is_cut(label) && local.range(label).length == 0) missing += label;
  }
  if (missing.empty()) return padding.run(local);
  pad_arguments(padding, missing, local);
  padding.run(local);
  for (size_t i = 0; i < padding.outputs.size(); ++i) {
    c10::IValue& result = local.result(i);
    for (size_t dim = 0; dim < padding.outputs[i].size(); ++dim) {
      if (!result.isTensor() || !result.toTensor().defined() || !has_any(padding.outputs[i][dim], missing)) continue;
      result = result.toTensor().narrow(static_cast<int64_t>(dim), 0, 0);
    }
  }
}

}  // namespace

void never_empty(const OpCall& call, TypedCall& operation) {
  Padding padding;
  const auto& arguments = call.schema().arguments();
  for (size_t i = 0; i < operation.inputs.size(); ++i) {
    padding.tensors.push_back({arguments[call.operand(i).argument].name(), operation.inputs[i]});
    for (const std::string& dim : operation.inputs[i]) {
      for (const char label : dim) {
        const bool may_be_cut = operation.whole.find(label) == std::string::npos ||
                                operation.kernel_labels.find(label) != std::string::npos;
        if (may_be_cut && padding.labels.find(label) == std::string::npos) padding.labels += label;
      }
    }
  }
  if (padding.labels.empty()) return;
  for (const LocalArgument& each : operation.local_arguments) {
    padding.sizes.push_back({arguments[each.argument].name(), each.dims});
  }
  padding.outputs = operation.outputs;
  padding.kernel = operation.kernel;
  padding.own_labels = operation.kernel_labels;
  const bool runs_always = operation.kernel && operation.kernel_labels.empty();
  operation.kernel_labels = runs_always ? "" : padding.labels;
  operation.kernel = [padding = std::move(padding)](LocalCall& local) {
    const std::vector<at::Tensor> outs = take_outs(local);
    run_padded(padding, local);
    write_outs(outs, local);
  };
}

std::optional<TypedCall> on_planes(const OpCall& call, int num_spatial, bool is_linear) {
  const int64_t num_leading = call.num_dims(0) - num_spatial;
  if (num_leading < 1) return std::nullopt;
  Labels labels;
  TypedCall operation;
  Dims output = labels.of(call.operand(0));
  output.resize(num_leading);
  for (int i = 0; i < call.num_read(); ++i) {
    if (call.num_dims(i) < num_leading) return std::nullopt;
    Dims dims = labels.of(call.sizes(i));
    for (int64_t dim = 0; dim < num_leading; ++dim) {
      dims[dim] = call.sizes(i)[dim] == 1 && !call.operand(i).is_cut(dim) ? "" : output[dim];
    }
    for (size_t dim = num_leading; dim < dims.size(); ++dim) operation.whole += dims[dim];
    operation.inputs.push_back(std::move(dims));
  }
  output.resize(call.num_dims(0));
  operation.outputs.assign(call.schema().returns().size(), output);
  if (is_linear) operation.terms = {{0}};
  const bool is_backward = call.index("grad_output") >= 0;
  for (const char* sizes_only : {"self", "input"}) {
    if (is_backward && call.index(sizes_only) >= 0) operation.unread = {call.operand_of(sizes_only)};
  }
  if (call.index("input_size") >= 0) operation.local_arguments = {{call.index("input_size"), output}};
  never_empty(call, operation);
  return operation;
}

}  // namespace caravan
