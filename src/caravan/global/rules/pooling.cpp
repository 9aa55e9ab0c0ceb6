#include <string>

#include "caravan/global/rules/planes.h"
#include "caravan/global/rules/rules.h"

namespace caravan {
namespace {

/// Windows that are drawn for each plane: random_samples [N, C, 2 or 3], with N = 1 for an input without a batch.
TypedResult fractional_pool(const OpCall& call, int num_spatial) {
  Labels labels;
  Dims input = labels.of(call.operand(0));
  Dims samples = labels.of(call.operand(1));
  TypedCall operation;
  const size_t num_leading = input.size() - num_spatial;
  for (size_t dim = num_leading; dim < input.size(); ++dim) operation.whole += input[dim];
  operation.whole += samples[2];
  if (!samples[1].empty()) samples[1] = input[num_leading - 1];
  if (!samples[0].empty()) samples[0] = num_leading == 2 ? input[0] : "";
  operation.inputs = {input, samples};
  input.resize(num_leading);
  input.resize(num_leading + num_spatial);
  operation.outputs = {input, input};
  never_empty(call, operation);
  return operation;
}

/// Linear in operand 0: an average, an interpolation, a copy to another place, a gradient.
void add_linear(RuleTable& rules, std::initializer_list<std::string_view> names, int num_spatial) {
  rules.add(names, [num_spatial](const OpCall& call) { return on_planes(call, num_spatial, true); });
}

void add_interpolations(RuleTable& rules) {
  const auto add = [&](const std::string& name, int num_spatial) {
    for (const char* suffix : {"", "_backward"}) {
      rules.add("aten::" + name + suffix,
                [num_spatial](const OpCall& call) { return on_planes(call, num_spatial, true); });
    }
  };
  for (int dims = 1; dims <= 3; ++dims) {
    add("upsample_nearest" + std::to_string(dims) + "d", dims);
    add("_upsample_nearest_exact" + std::to_string(dims) + "d", dims);
    add("reflection_pad" + std::to_string(dims) + "d", dims);
    add("replication_pad" + std::to_string(dims) + "d", dims);
  }
  add("upsample_linear1d", 1);
  add("upsample_trilinear3d", 3);
  for (const char* name : {"upsample_bilinear2d", "upsample_bicubic2d", "_upsample_bilinear2d_aa",
                           "_upsample_bicubic2d_aa", "_upsample_lanczos2d_aa"}) {
    add(name, 2);
  }
}

}  // namespace

void add_pooling_rules(RuleTable& rules) {
  add_linear(rules,
             {"aten::avg_pool2d", "aten::avg_pool2d_backward", "aten::_adaptive_avg_pool2d",
              "aten::_adaptive_avg_pool2d_backward", "aten::adaptive_avg_pool2d", "aten::adaptive_max_pool2d_backward",
              "aten::max_pool2d_with_indices_backward", "aten::fractional_max_pool2d_backward", "aten::max_unpool2d"},
             2);
  add_linear(rules,
             {"aten::avg_pool3d", "aten::avg_pool3d_backward", "aten::_adaptive_avg_pool3d",
              "aten::_adaptive_avg_pool3d_backward", "aten::adaptive_avg_pool3d", "aten::adaptive_avg_pool3d_backward",
              "aten::adaptive_max_pool3d_backward", "aten::max_pool3d_with_indices_backward",
              "aten::fractional_max_pool3d_backward", "aten::max_unpool3d"},
             3);
  // Indices count within a plane.
  rules.add({"aten::max_pool2d_with_indices", "aten::adaptive_max_pool2d"},
            [](const OpCall& call) { return on_planes(call, 2, false); });
  rules.add({"aten::max_pool3d_with_indices", "aten::adaptive_max_pool3d"},
            [](const OpCall& call) { return on_planes(call, 3, false); });
  rules.add("aten::fractional_max_pool2d", [](const OpCall& call) { return fractional_pool(call, 2); });
  rules.add("aten::fractional_max_pool3d", [](const OpCall& call) { return fractional_pool(call, 3); });
  add_interpolations(rules);
}

}  // namespace caravan
