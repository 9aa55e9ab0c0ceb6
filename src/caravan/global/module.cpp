#include "caravan/global/module.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <torch/nn/module.h>

#include "caravan/base/error.h"
#include "caravan/base/pattern.h"
#include "caravan/base/text.h"
#include "caravan/global/global.h"
#include "caravan/global/leaf_gradients.h"
#include "caravan/global/plain_check.h"
#include "caravan/global/state.h"

namespace caravan {
namespace {

struct Named {
  std::string name;
  at::Tensor tensor;
  bool is_parameter;
};

/// Each tensor once, under its first name.
std::vector<Named> tensors_of(const torch::nn::Module& net) {
  std::vector<Named> all;
  const auto add = [&](const std::string& name, const at::Tensor& tensor, bool is_parameter) {
    const bool is_known = std::ranges::any_of(all, [&](const Named& each) { return each.tensor.is_same(tensor); });
    if (tensor.defined() && !is_known) all.push_back({name, tensor, is_parameter});
  };
  for (const auto& each : net.named_parameters()) add(each.key(), each.value(), true);
  for (const auto& each : net.named_buffers()) add(each.key(), each.value(), false);
  return all;
}

}  // namespace

void check_layout_patterns(const std::vector<std::string>& names, const std::vector<NamedLayout>& layouts,
                           const Mesh& mesh, const char* op) {
  for (const NamedLayout& given : layouts) {
    if (std::ranges::any_of(names, [&](const auto& name) { return matches_pattern(given.pattern, name); })) continue;
    throw UsageError({op, "pattern \"" + given.pattern + "\"", "matches no parameter and no buffer", mesh.where(),
                      "did you mean \"" + nearest_pattern(given.pattern, names) + "\"?"});
  }
}

const Layout& layout_for(const std::string& name, const std::vector<NamedLayout>& layouts) {
  static const Layout replicated;
  const auto found = std::find_if(layouts.rbegin(), layouts.rend(),
                                  [&](const NamedLayout& each) { return matches_pattern(each.pattern, name); });
  return found == layouts.rend() ? replicated : found->layout;
}

void distribute_module(torch::nn::Module& net, const std::vector<NamedLayout>& layouts, const GlobalContext& context) {
  const std::vector<Named> tensors = tensors_of(net);
  std::vector<std::string> names;
  for (const Named& each : tensors) names.push_back(each.name);
  check_layout_patterns(names, layouts, context.mesh(), "distribute_module");
  for (const Named& each : tensors) {
    if (is_global(each.tensor) && meta_of(each.tensor)->state != context.state()) {
      throw UsageError({"distribute_module", each.name, "is a global tensor of another context", context.mesh().where(),
                        "make one GlobalContext for a program; a net that parallelize() has is laid out by tensor()"});
    }
    context.state()->placed(layout_for(each.name, layouts), each.tensor.sizes().vec(), each.name);
  }
  std::vector<NamedTensor> values;
  for (const Named& each : tensors) {
    if (!is_global(each.tensor)) values.push_back({each.name, each.tensor});
  }
  check_same_values(values, "distribute_module", *context.state());
  const at::NoGradGuard no_grad;
  for (const Named& each : tensors) {
    at::Tensor tensor = each.tensor;  // another handle of the same tensor
    const Layout& layout = layout_for(each.name, layouts);
    tensor.set_data(is_global(tensor) ? redistribute(tensor.detach(), layout)
                                      : distributed(tensor.detach(), layout, context));
    if (!each.is_parameter) continue;
    meta_of(tensor)->is_parameter = true;
    LeafGradients::watch(tensor);  // also of a frozen one, which may be trained later
  }
}

}  // namespace caravan
