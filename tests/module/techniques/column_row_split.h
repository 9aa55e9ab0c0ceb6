#pragma once

#include <map>
#include <string>

#include "caravan/module/module.h"
#include "caravan/redistribute/redistribute.h"

namespace caravan::testing {

/// Test-only technique: every attention and MLP of a model split over one axis, from outside. The linears that read the
/// stream are cut by columns, the one that writes it back by rows; the stream stays invariant.
class ColumnRowSplit {
 public:
  static std::map<std::string, Layout> layouts(const Module& model, const std::string& axis) {
    std::map<std::string, Layout> layouts;
    for (const Parameter* parameter : model.parameters()) {
      const std::string& name = parameter->name();
      if (!has(name, ".attention.") && !has(name, ".mlp.")) continue;
      const bool is_row = has(name, ".output.") || has(name, ".down.");
      if (!is_row) layouts.emplace(name, Layout{{axis, Shard{0}}});
      if (is_row && !has(name, ".bias")) layouts.emplace(name, Layout{{axis, Shard{1}}});
    }
    return layouts;
  }

  static void apply(Module& model, const MeshAxis& axis) {
    for (Module* module : model.modules()) {
      if (ends(*module, ".attention") || ends(*module, ".mlp")) {
        module->add_pre_forward_hook([axis](Module&, Tensors& inputs, const ForwardContext&) {
          inputs[0] = move(inputs[0], Invariant{}, axis, Replicate{});
        });
      } else if (ends(*module, ".output") || ends(*module, ".down")) {
        module->add_pre_forward_hook([axis](Module& linear, Tensors&, const ForwardContext&) {
          for (Parameter* parameter : linear.own_parameters()) {  // a bias is added to a partial sum: once
            if (!has(parameter->name(), ".bias")) continue;
            parameter->set_compute(move(parameter->rest(), Invariant{}, axis, Partial{}));
          }
        });
        module->add_post_forward_hook([axis](Module&, Tensors& outputs, const ForwardContext&) {
          outputs[0] = move(outputs[0], Partial{}, axis, Invariant{});
        });
      }
    }
  }

 private:
  static bool has(const std::string& name, const char* part) { return name.find(part) != std::string::npos; }
  static bool ends(const Module& module, std::string_view end) { return module.name().ends_with(end); }
  static at::Tensor move(const at::Tensor& x, const Placement& from, const MeshAxis& axis, const Placement& to) {
    return redistribute(x, {{axis.name(), from}}, axis, to);
  }
};

}  // namespace caravan::testing
