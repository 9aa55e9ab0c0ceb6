#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mkldnn_rnn_layer.h>
#include <ATen/ops/zeros_like.h>

#include "caravan/global/local_call.h"
#include "caravan/global/rules/rules.h"
#include "caravan/global/rules/typing.h"

namespace caravan {
namespace {

// Which layers of an LSTM run on a CPU in fp32. Sequences are independent; [time, sequences, features].

struct LayerDims {
  Dims input;   ///< time, sequences, features
  Dims output;  ///< time, sequences, hidden units
  Dims state;   ///< sequences, hidden units
};

LayerDims type_layer(Typing& typing, const OpCall& call) {
  LayerDims dims;
  dims.input = typing.of("input");
  const std::string hidden = typing.next_dim(call.integer("hidden_size"));
  typing.need(dims.input[0] + dims.input[2] + hidden);
  dims.output = {dims.input[0], dims.input[1], hidden};
  dims.state = {dims.input[1], hidden};
  typing.set("hx_", dims.state);
  return dims;
}

/// The workspace is opaque and of a size of its own on each rank, so it is not kept: backward makes it again.
void run_layer(LocalCall& local) {
  for (const auto* name : {"input", "hx_", "cx_"}) local.argument(name) = local.tensor(name).contiguous();
  const at::Tensor input = local.tensor("input");
  const at::Tensor workspace = at::empty({0}, input.options().dtype(at::kByte));
  if (input.size(1) == 0) {
    const at::Tensor output = at::empty({input.size(0), 0, local.argument("hidden_size").toInt()}, input.options());
    return local.give({output, local.tensor("hx_").clone(), local.tensor("cx_").clone(), workspace});
  }
  local.run();
  local.result(3) = workspace;
}

TypedResult layer(const OpCall& call) {
  if (call.num_dims(0) != 3 || !call.integers("batch_sizes").empty()) return std::nullopt;
  Typing typing(call);
  const LayerDims dims = type_layer(typing, call);
  typing.set("cx_", dims.state);
  typing.operation.outputs = {dims.output, dims.state, dims.state, {""}};
  typing.operation.kernel = run_layer;
  return typing.finish();
}

void run_layer_backward(LocalCall& local) {
  std::vector<at::Tensor> inputs;
  for (const auto* name : {"input", "weight1", "weight2", "weight3", "weight4", "hx_", "cx_tmp"}) {
    inputs.push_back(local.tensor(name).contiguous());
    local.argument(name) = inputs.back();
  }
  if (inputs[0].size(1) == 0) {
    std::vector<c10::IValue> zeros;
    for (const at::Tensor& each : inputs) zeros.emplace_back(at::zeros_like(each));
    return local.give(std::move(zeros));
  }
  for (const auto* name : {"output", "hy_", "cy_", "grad_output", "grad_hy", "grad_cy"}) {
    const at::Tensor tensor = local.tensor(name);
    if (tensor.defined()) local.argument(name) = tensor.contiguous();
  }
  const at::AutoGradMode for_training(true);  // else ATen makes no workspace
  local.argument("workspace") = std::get<3>(
      at::mkldnn_rnn_layer(inputs[0], inputs[1], inputs[2], inputs[3], inputs[4], inputs[5], inputs[6],
                           local.argument("reverse").toBool(), local.argument("batch_sizes").toIntVector(),
                           local.argument("mode").toInt(), local.argument("hidden_size").toInt(),
                           local.argument("num_layers").toInt(), local.argument("has_biases").toBool(),
                           local.argument("bidirectional").toBool(), local.argument("batch_first").toBool(), true));
  local.run();
}

TypedResult layer_backward(const OpCall& call) {
  if (call.num_dims(0) != 3 || !call.integers("batch_sizes").empty()) return std::nullopt;
  Typing typing(call);
  const LayerDims dims = type_layer(typing, call);
  for (const auto* name : {"cx_tmp", "hy_", "cy_", "grad_hy", "grad_cy"}) typing.set(name, dims.state);
  for (const auto* name : {"output", "grad_output"}) typing.set(name, dims.output);
  typing.operation.outputs.push_back(dims.input);
  for (const auto* name : {"weight1", "weight2", "weight3", "weight4"}) {
    typing.operation.outputs.push_back(typing.of(name));
    typing.need(typing.operation.outputs.back());
  }
  typing.operation.outputs.insert(typing.operation.outputs.end(), 2, dims.state);
  typing.operation.kernel = run_layer_backward;
  return typing.finish();
}

}  // namespace

void add_recurrent_rules(RuleTable& rules) {
  rules.add("aten::mkldnn_rnn_layer", layer);
  rules.add("aten::mkldnn_rnn_layer_backward", layer_backward);
}

}  // namespace caravan
