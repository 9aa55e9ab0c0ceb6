#include <algorithm>
#include <string>

#include <ATen/core/Tensor.h>

#include "caravan/global/local_call.h"
#include "caravan/global/rules/planes.h"
#include "caravan/global/rules/rules.h"

namespace caravan {
namespace {

/// The labels of a convolution: n of the batch; channels of the input are (g i), of the output (g o), with g the groups
/// if there are several.
struct Channels {
  Dims input, weight, output;
  std::string bias;  ///< the channels of the output
  std::string groups, inner;
  std::string whole;
  std::map<char, int64_t> extents;
};

Channels channels_of(const std::vector<int64_t>& input, const std::vector<int64_t>& weight, int64_t groups,
                     bool is_transposed) {
  Channels channels;
  Labels labels;
  const bool is_batched = input.size() == weight.size();
  const size_t channel_dim = is_batched ? 1 : 0;
  const auto label = [&](int64_t extent) {
    if (extent <= 1) return std::string();
    const char letter = labels.next();
    channels.extents[letter] = extent;
    return std::string(1, letter);
  };
  channels.groups = label(groups);
  channels.inner = label(input[channel_dim] / groups);
  const std::string outer = label(is_transposed ? weight[1] : weight[0] / groups);
  channels.bias = channels.groups + outer;
  const std::string batch = is_batched ? label(input[0]) : "";
  const auto spatial = [&](Dims dims, const std::vector<int64_t>& sizes) {
    while (dims.size() < sizes.size()) {
      dims.push_back(label(sizes[dims.size()]));
      channels.whole += dims.back();
    }
    return dims;
  };
  Dims leading = is_batched ? Dims{batch} : Dims{};
  channels.output = leading;
  channels.output.push_back(channels.bias);
  leading.push_back(channels.groups + channels.inner);
  channels.input = spatial(leading, input);
  channels.weight = spatial(
      is_transposed ? Dims{channels.groups + channels.inner, outer} : Dims{channels.bias, channels.inner}, weight);
  return channels;
}

int64_t groups_of(const OpCall& call, int input) {
  const std::string& name = call.schema().name();
  if (name.find("depthwise") == std::string::npos) return call.integer("groups", 1);
  return call.sizes(input)[call.num_dims(input) == 5 || (call.num_dims(input) == 4 && !name.ends_with("3d")) ? 1 : 0];
}

bool is_transposed(const OpCall& call) {
  return call.schema().name().find("slow_conv_transpose") != std::string::npos ||
         (call.index("transposed") >= 0 && call.flag("transposed"));
}

void add_groups(const OpCall& call, const Channels& channels, TypedCall& operation) {
  if (call.index("groups") < 0 || channels.groups.empty()) return;
  operation.local_arguments.push_back({call.index("groups"), {channels.groups}});
}

TypedResult convolution(const OpCall& call) {
  const Channels channels = channels_of(call.sizes(0), call.sizes(1), groups_of(call, 0), is_transposed(call));
  TypedCall operation{.inputs = {channels.input, channels.weight},
                      .whole = channels.whole,
                      .terms = {{0, 1}},
                      .extents = channels.extents};
  if (call.num_read() == 3) {
    operation.inputs.push_back({channels.bias});
    operation.terms.push_back({2});
  }
  Dims output = channels.output;
  output.resize(call.num_dims(0));
  operation.outputs = {output};
  add_groups(call, channels, operation);
  never_empty(call, operation);
  return operation;
}

/// Gradients of input, weight and bias.
TypedResult convolution_backward(const OpCall& call) {
  const int input = call.operand_of(call.index("input") >= 0 ? "input" : "self");
  const int weight = call.operand_of("weight");
  const Channels channels =
      channels_of(call.sizes(input), call.sizes(weight), groups_of(call, input), is_transposed(call));
  TypedCall operation{.inputs = {{}, channels.input, channels.weight},
                      .outputs = {channels.input, channels.weight, {channels.bias}},
                      .whole = channels.whole,
                      .terms = {{0}},
                      .extents = channels.extents};
  Labels labels;
  for (size_t used = 0; used < channels.extents.size(); ++used) labels.next();
  Dims gradient = labels.of(call.sizes(0));
  std::copy(channels.output.begin(), channels.output.end(), gradient.begin());
  for (size_t dim = channels.output.size(); dim < gradient.size(); ++dim) operation.whole += gradient[dim];
  operation.inputs[0] = std::move(gradient);
  add_groups(call, channels, operation);
  if (call.has("bias_sizes")) operation.local_arguments.push_back({call.index("bias_sizes"), {channels.bias}});
  // The gradient of the bias is no sum over channels of the input: of ranks that cut these, the first one has it.
  operation.kernel_labels = channels.inner;
  if (!channels.inner.empty()) {
    operation.kernel = [inner = channels.inner[0]](LocalCall& local) {
      local.run();
      const auto axes = local.axes_of(inner);
      const bool is_first = std::ranges::all_of(axes, [](const MeshAxis* axis) { return axis->coord() == 0; });
      const at::Tensor bias = local.result(2).isTensor() ? local.result(2).toTensor() : at::Tensor();
      if (bias.defined() && !is_first) local.result(2) = bias.zero_();
    };
  }
  never_empty(call, operation);
  return operation;
}

/// [time, batch, channels], weight [taps, input, output].
TypedResult convolution_tbc(const OpCall& call) {
  Labels labels;
  TypedCall operation{.inputs = {labels.of(call.sizes(0)), labels.of(call.sizes(1)), {}}, .terms = {{0, 1}, {2}}};
  operation.whole = operation.inputs[0][0] + operation.inputs[1][0];
  operation.inputs[1][1] = operation.inputs[0][2];
  operation.inputs[2] = {operation.inputs[1][2]};
  operation.outputs = {{"", operation.inputs[0][1], operation.inputs[1][2]}};
  never_empty(call, operation);
  return operation;
}

// ---- columns of windows ----

/// Between images [n, c, ..] and columns [n, c * taps, positions].
TypedResult columns(const OpCall& call, bool from_image) {
  int64_t num_taps = 1;
  for (const int64_t size : call.integers("kernel_size")) num_taps *= size;
  const std::vector<int64_t> sizes = call.sizes(0);
  Labels labels;
  Dims input = labels.of(sizes);
  TypedCall operation{.terms = {{0}}};
  const size_t channel_dim = sizes.size() - (from_image ? 3 : 2);
  for (size_t dim = channel_dim + 1; dim < sizes.size(); ++dim) operation.whole += input[dim];
  const int64_t num_channels = from_image ? sizes[channel_dim] : sizes[channel_dim] / num_taps;
  const std::string channel = num_channels > 1 ? std::string(1, labels.next()) : "";
  const std::string taps = num_taps > 1 ? std::string(1, labels.next()) : "";
  if (!channel.empty()) operation.extents[channel[0]] = num_channels;
  if (!taps.empty()) operation.extents[taps[0]] = num_taps;
  operation.whole += taps;
  input[channel_dim] = from_image ? channel : channel + taps;
  Dims output(input.begin(), input.begin() + static_cast<int64_t>(channel_dim));
  output.push_back(from_image ? channel + taps : channel);
  output.resize(output.size() + (from_image ? 1 : 2));
  operation.inputs = {input};
  operation.outputs = {output};
  never_empty(call, operation);
  return operation;
}

// ---- samples of images at points ----

/// image [n, c, ..], grid [n, points .., 2 or 3].
TypedCall sampled(const GlobalOperand& image, const GlobalOperand& grid, Dims& output) {
  Labels labels;
  TypedCall operation{.inputs = {labels.of(image), labels.of(grid)}, .terms = {{0}}};
  Dims& pixels = operation.inputs[0];
  Dims& points = operation.inputs[1];
  for (size_t dim = 2; dim < pixels.size(); ++dim) operation.whole += pixels[dim];
  operation.whole += points.back();
  if (!points[0].empty()) points[0] = pixels[0];
  output = {pixels[0], pixels[1]};
  output.insert(output.end(), points.begin() + 1, points.end() - 1);
  return operation;
}

TypedResult grid_sampler(const OpCall& call) {
  Dims output;
  TypedCall operation = sampled(call.operand(0), call.operand(1), output);
  operation.outputs = {output};
  never_empty(call, operation);
  return operation;
}

TypedResult grid_sampler_backward(const OpCall& call) {
  Dims gradient;
  TypedCall operation = sampled(call.operand(1), call.operand(2), gradient);
  operation.outputs = operation.inputs;
  operation.inputs.insert(operation.inputs.begin(), gradient);
  never_empty(call, operation);
  return operation;
}

TypedResult affine_grid(const OpCall& call) {
  Labels labels;
  TypedCall operation{.inputs = {labels.of(call.sizes(0))}, .terms = {{0}}};
  operation.whole = operation.inputs[0][1] + operation.inputs[0][2];
  Dims output(call.integers("size").size());
  output[0] = operation.inputs[0][0];
  operation.outputs = {output};
  operation.local_arguments = {{call.index("size"), output}};
  never_empty(call, operation);
  return operation;
}

}  // namespace

void add_convolution_rules(RuleTable& rules) {
  rules.add({"aten::convolution", "aten::_convolution", "aten::convolution_overrideable", "aten::mkldnn_convolution",
             "aten::_slow_conv2d_forward", "aten::slow_conv3d_forward", "aten::slow_conv_dilated2d",
             "aten::slow_conv_dilated3d", "aten::slow_conv_transpose2d", "aten::slow_conv_transpose3d",
             "aten::_conv_depthwise2d", "aten::conv_depthwise3d", "aten::_nnpack_spatial_convolution"},
            convolution);
  rules.add({"aten::convolution_backward", "aten::convolution_backward_overrideable", "aten::_slow_conv2d_backward"},
            convolution_backward);
  rules.add("aten::conv_tbc", convolution_tbc);
  rules.add("aten::im2col", [](const OpCall& call) { return columns(call, true); });
  rules.add("aten::col2im", [](const OpCall& call) { return columns(call, false); });
  rules.add({"aten::grid_sampler_2d", "aten::grid_sampler_3d", "aten::_grid_sampler_2d_cpu_fallback"}, grid_sampler);
  rules.add({"aten::grid_sampler_2d_backward", "aten::grid_sampler_3d_backward",
             "aten::_grid_sampler_2d_cpu_fallback_backward"},
            grid_sampler_backward);
  rules.add("aten::affine_grid_generator", affine_grid);
}

}  // namespace caravan
