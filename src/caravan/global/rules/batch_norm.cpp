#include <algorithm>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>

#include "caravan/global/local_call.h"
#include "caravan/global/rules/rules.h"
#include "caravan/global/rules/typing.h"

namespace caravan {
namespace {

/// What a channel's statistics are taken over: labels of the input, and elements of the whole tensor.
struct NormalizedOver {
  std::string labels;
  double count = 1;
};

std::vector<int64_t> all_but_channels(const at::Tensor& x) {
  std::vector<int64_t> dims;
  for (int64_t dim = 0; dim < x.dim(); ++dim) {
    if (dim != 1) dims.push_back(dim);
  }
  return dims;
}

/// A value for each channel, as wide as `x`.
at::Tensor per_channel(const at::Tensor& value, const at::Tensor& x) {
  std::vector<int64_t> sizes(x.dim(), 1);
  sizes[1] = value.numel();
  return value.to(x.scalar_type()).view(sizes);
}

at::Tensor at_least_float(const at::Tensor& x) {
  return x.scalar_type() == at::kHalf || x.scalar_type() == at::kBFloat16 ? x.to(at::kFloat) : x;
}

bool names(const std::string& op, std::string_view part) { return op.find(part) != std::string::npos; }

/// The op itself. Its overloads out= give wrong values where input and output lie differently in memory, as slices do.
void run_on_fresh_outs(LocalCall& call) {
  std::vector<at::Tensor> outs;
  for (const c10::Argument& each : call.schema().arguments()) {
    if (!each.is_out()) continue;
    outs.push_back(call.tensor(each.name()));
    call.argument(each.name()) = at::empty(outs.back().sizes(), outs.back().options());
  }
  if (!outs.empty()) call.argument("input") = call.tensor("input").contiguous();
  call.run();
  for (size_t i = 0; i < outs.size(); ++i) {
    const at::Tensor value = call.result(i).toTensor();
    if (outs[i].sizes() != value.sizes()) outs[i].resize_(value.sizes());
    call.result(i) = outs[i].copy_(value);
  }
}

/// The op itself, which divides by the number of elements of a channel and of channels, unless this rank has none.
void run_unless_empty(LocalCall& call, bool trains) {
  const at::Tensor x = call.tensor("input");
  if (x.size(1) > 0 && (x.numel() > 0 || trains)) {
    run_on_fresh_outs(call);
    return;
  }
  const at::Tensor none = at::empty({0}, x.options());
  std::vector<c10::IValue> outputs{at::empty_like(x), none, none};
  if (names(call.name(), "with_update") || names(call.name(), "no_update")) outputs.emplace_back(none.to(at::kByte));
  if (names(call.name(), "_functional")) {
    outputs.emplace_back(call.tensor("running_mean").clone());
    outputs.emplace_back(call.tensor("running_var").clone());
  }
  call.give(std::move(outputs));
}

void run_backward_unless_empty(LocalCall& call) {
  const at::Tensor x = call.tensor("input");
  if (x.numel() > 0) {
    call.run();
    return;
  }
  const at::Tensor weight = call.tensor("weight");
  const c10::List<bool> mask = call.argument("output_mask").toBoolList();
  const at::Tensor zeros = at::zeros({x.size(1)}, weight.defined() ? weight.options() : x.options());
  call.give({mask[0] ? at::empty_like(x) : at::Tensor(), mask[1] ? zeros : at::Tensor(),
             mask[2] ? zeros.clone() : at::Tensor()});
}

bool is_any_cut(const LocalCall& call, std::string_view labels) {
  return std::ranges::any_of(labels, [&](char label) { return call.is_cut(label); });
}

/// Training with a cut batch: mean and squares over all ranks, in two passes as ATen does, since squares without the
/// mean lose digits. One all-reduce for each pass, of a number for each channel.
void batch_norm_kernel(LocalCall& call, const NormalizedOver& over) {
  const at::Tensor x = call.tensor("input");
  const at::Tensor weight = call.tensor("weight");
  const at::Tensor bias = call.tensor("bias");
  const std::string op = call.name();
  const bool has_statistics = names(op, "with_update") || call.schema().overload_name().find("no_stats") != 0;
  at::Tensor running_mean = has_statistics ? call.tensor("running_mean") : at::Tensor();
  at::Tensor running_var = has_statistics ? call.tensor("running_var") : at::Tensor();
  const double momentum = call.argument("momentum").toDouble();
  const double eps = call.argument("eps").toDouble();

  const at::Tensor wide = at_least_float(x);
  const std::vector<int64_t> dims = all_but_channels(x);
  const at::Tensor mean = call.sum_over(over.labels, at::sum(wide, dims, false, at::kDouble)).div(over.count);
  const at::Tensor centred = wide - per_channel(mean, wide);
  const at::Tensor squares = call.sum_over(over.labels, at::sum(centred.square(), dims, false, at::kDouble));
  const at::Tensor var = squares.div(over.count);

  if (names(op, "_functional")) {
    running_mean = running_mean.clone();
    running_var = running_var.clone();
  }
  if (running_mean.defined()) running_mean.mul_(1 - momentum).add_(mean.to(running_mean.scalar_type()), momentum);
  if (running_var.defined()) {
    running_var.mul_(1 - momentum).add_(squares.div(over.count - 1).to(running_var.scalar_type()), momentum);
  }
  const at::Tensor& kept = weight.defined()         ? weight
                           : bias.defined()         ? bias
                           : running_mean.defined() ? running_mean
                                                    : x;
  const at::ScalarType type = kept.scalar_type();
  const at::Tensor output =
      x.numel() == 0 ? at::empty_like(x)
                     : std::get<0>(at::native_batch_norm(x, weight, bias, mean.to(type), var.to(type), false, 0, eps));
  std::vector<c10::IValue> outputs{output, mean.to(type), var.add(eps).rsqrt().to(type)};
  if (names(op, "with_update")) outputs.emplace_back(at::empty({0}, x.options().dtype(at::kByte)));
  if (names(op, "_functional")) {
    outputs.emplace_back(running_mean);
    outputs.emplace_back(running_var);
  }
  call.give(std::move(outputs));
}

/// The gradient's sums over all ranks in one all-reduce; with them, those of weight and bias are whole too.
void batch_norm_backward_kernel(LocalCall& call, const NormalizedOver& over, std::string_view saved_invstd) {
  const at::Tensor x = call.tensor("input");
  const at::Tensor weight = call.tensor("weight");
  const at::Tensor kept_mean = call.tensor("save_mean");
  const at::Tensor invstd = call.tensor(saved_invstd);
  const std::vector<bool> mask = [&] {
    std::vector<bool> all;
    for (const bool each : call.argument("output_mask").toBoolList()) all.push_back(each);
    return all;
  }();
  const at::Tensor grad = at_least_float(call.tensor("grad_out"));
  const std::vector<int64_t> dims = all_but_channels(x);
  const at::Tensor wide = at_least_float(x);
  const at::Tensor centred = wide - per_channel(kept_mean, wide);
  const at::Tensor sums = call.sum_over(over.labels, at::stack({at::sum(grad, dims, false, at::kDouble),
                                                                at::sum(grad * centred, dims, false, at::kDouble)}));
  const at::Tensor inverse = invstd.to(at::kDouble);
  at::Tensor grad_input, grad_weight, grad_bias;
  if (mask[0]) {
    const at::Tensor scale = weight.defined() ? inverse * weight.to(at::kDouble) : inverse;
    const at::Tensor slope = sums[1] * inverse.square() / over.count;
    grad_input = (grad - per_channel(sums[0] / over.count, wide) - centred * per_channel(slope, wide)) *
                 per_channel(scale, wide);
    grad_input = grad_input.to(x.scalar_type());
  }
  const at::ScalarType type = weight.defined() ? weight.scalar_type() : kept_mean.scalar_type();
  if (mask[1]) grad_weight = (sums[1] * inverse).to(type);
  if (mask[2]) grad_bias = sums[0].to(type);
  call.give({grad_input, grad_weight, grad_bias});
}

/// Channels are independent. In evaluation the batch is too; in training a kernel sums statistics over it.
struct BatchNorm {
  explicit BatchNorm(const OpCall& call) : typing(call) {
    const std::vector<int64_t> sizes = call.sizes(typing.operand_of("input"));
    if (sizes.size() < 2) return;
    dims = typing.of("input");
    channel = dims[1];
    for (size_t dim = 0; dim < dims.size(); ++dim) {
      if (dim == 1) continue;
      over.labels += dims[dim];
      over.count *= static_cast<double>(sizes[dim]);
    }
    for (const auto* argument : {"weight", "bias", "running_mean", "running_var"}) typing.set(argument, {channel});
    for (const auto* argument : {"save_mean", "save_invstd", "save_var"}) {
      const int i = typing.operand_of(argument);
      if (i >= 0 && call.sizes(i) == std::vector<int64_t>{sizes[1]}) typing.set(argument, {channel});
    }
    for (const auto* argument : {"grad_out", "grad_output"}) typing.set(argument, dims);
  }

  /// The kernel for a cut batch; none: the batch is needed whole.
  void sum_over_batch(const LocalKernel& kernel, const LocalKernel& otherwise) {
    typing.need(over.labels);
    if (!kernel) return;
    typing.operation.kernel_labels = over.labels + channel;
    typing.operation.kernel = [kernel, otherwise, labels = over.labels](LocalCall& local) {
      is_any_cut(local, labels) ? kernel(local) : otherwise(local);
    };
  }

  Typing typing;
  Dims dims;
  std::string channel;
  NormalizedOver over;
};

TypedResult batch_norm(const OpCall& call) {
  BatchNorm norm(call);
  if (norm.dims.empty()) return norm.typing.finish();
  const std::string op = call.schema().name();
  bool trains = names(op, "with_update") || names(op, "update_stats");
  if (call.index("training") >= 0) trains = call.flag("training");
  const Dims saved{trains ? norm.channel : ""};
  TypedCall& operation = norm.typing.operation;
  operation.outputs = {norm.dims, saved, saved};
  if (names(op, "with_update") || names(op, "no_update") || names(op, "cudnn")) operation.outputs.push_back({""});
  if (names(op, "_functional")) operation.outputs.insert(operation.outputs.end(), 2, {norm.channel});
  for (int i = 1; i < static_cast<int>(operation.outputs.size()); ++i) operation.whole_outputs.push_back(i);
  const LocalKernel run = [trains](LocalCall& local) { run_unless_empty(local, trains); };
  if (!trains) operation.kernel = run;
  if (trains) {
    const LocalKernel kernel = [over = norm.over](LocalCall& local) { batch_norm_kernel(local, over); };
    norm.sum_over_batch(names(op, "cudnn") ? LocalKernel() : kernel, run);
  }
  for (const auto* argument : {"running_mean", "running_var"}) {
    const int i = norm.typing.operand_of(argument);
    const bool is_written = i >= 0 && (call.operand(i).is_written || (trains && !names(op, "_functional")));
    if (is_written) operation.written.push_back(i);
  }
  return norm.typing.finish();
}

TypedResult batch_norm_backward(const OpCall& call) {
  BatchNorm norm(call);
  if (norm.dims.empty()) return norm.typing.finish();
  const bool is_cudnn = names(call.schema().name(), "cudnn");
  const bool trains = is_cudnn || (call.index("train") >= 0 ? call.flag("train") : call.flag("update"));
  const Dims channels{norm.channel};
  norm.typing.operation.outputs = {norm.dims, channels, channels};
  norm.typing.operation.terms = {{norm.typing.operand_of(is_cudnn ? "grad_output" : "grad_out")}};
  const auto unread = trains ? std::vector{"running_mean", "running_var"} : std::vector{"save_mean", "save_invstd"};
  for (const char* argument : unread) {
    const int i = norm.typing.operand_of(argument);
    if (i >= 0 && !is_cudnn) norm.typing.operation.unread.push_back(i);
  }
  if (!trains && !is_cudnn) norm.typing.operation.kernel = run_backward_unless_empty;
  if (trains) {
    const std::string saved = call.index("save_invstd") >= 0 ? "save_invstd" : "save_var";
    const LocalKernel kernel = [over = norm.over, saved](LocalCall& local) {
      batch_norm_backward_kernel(local, over, saved);
    };
    norm.sum_over_batch(is_cudnn ? LocalKernel() : kernel, run_backward_unless_empty);
    norm.typing.operation.whole_outputs = {1, 2};
  }
  return norm.typing.finish();
}

/// Mean and variance of a batch, and the running ones updated in place.
TypedResult batch_norm_update(const OpCall& call) {
  BatchNorm norm(call);
  const Dims channels{norm.channel};
  norm.typing.operation.outputs = {channels, channels};
  norm.typing.need(norm.over.labels);
  for (const auto* argument : {"running_mean", "running_var"}) {
    const int i = norm.typing.operand_of(argument);
    if (i >= 0) norm.typing.operation.written.push_back(i);
  }
  return norm.typing.finish();
}

}  // namespace

void add_batch_norm_rules(RuleTable& rules) {
  rules.add({"aten::native_batch_norm", "aten::_native_batch_norm_legit", "aten::_native_batch_norm_legit_no_training",
             "aten::_native_batch_norm_legit_functional", "aten::_batch_norm_with_update",
             "aten::_batch_norm_with_update_functional", "aten::_batch_norm_no_update", "aten::cudnn_batch_norm"},
            batch_norm);
  rules.add({"aten::native_batch_norm_backward", "aten::batch_norm_backward", "aten::cudnn_batch_norm_backward"},
            batch_norm_backward);
  rules.add("aten::batch_norm_update_stats", batch_norm_update);
}

}  // namespace caravan
