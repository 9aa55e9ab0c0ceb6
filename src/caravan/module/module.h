#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "caravan/mesh/layout.h"
#include "caravan/module/context.h"
#include "caravan/module/parameter.h"

namespace caravan {

using Tensors = std::vector<at::Tensor>;

/// A part of a model: named parameter slots, children in order, and a forward function over tensors. The seam of every
/// technique: whoever splits, gathers, frees or moves parameters and activations does it through slots and hooks, from
/// outside.
///
/// Construction makes shapes only; materialise makes memory. Modules are made once, owned by their parent and never
/// copied.
class Module {
 public:
  /// Sees and may replace the inputs (before) or outputs (after) of the module's forward.
  using Hook = std::function<void(Module& module, Tensors& tensors, const ForwardContext& context)>;

  Module() = default;
  virtual ~Module();
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  /// Runs pre-forward hooks, forward, post-forward hooks.
  Tensors run(Tensors inputs, const ForwardContext& context);
  /// The same for one tensor in, one out.
  at::Tensor operator()(const at::Tensor& input, const ForwardContext& context);

  /// Hooks run in the order they were added (pre) and in reverse (post): the first added is the outermost.
  void add_pre_forward_hook(Hook hook) { pre_hooks_.push_back(std::move(hook)); }
  void add_post_forward_hook(Hook hook) { post_hooks_.push_back(std::move(hook)); }

  /// Dotted name from the root: "blocks.3.attention". "" for the root.
  const std::string& name() const noexcept { return name_; }
  /// The slots of this module alone, and those of the whole tree in forward order (a tied weight once, where it first
  /// occurs).
  const std::vector<Parameter*>& own_parameters() const noexcept { return own_; }
  std::vector<Parameter*> parameters() const;
  /// This module and everything below it, parents first, in order.
  std::vector<Module*> modules();
  /// The module of that dotted name below this one. Throws UsageError naming the nearest that exists.
  Module& find(const std::string& name);

  /// Tensors that are state but no parameters (running statistics), by dotted name.
  virtual std::vector<std::pair<std::string, at::Tensor>> buffers() { return {}; }

  /// The ordered list a pipeline cuts: running them one after the other is running the module. Default: the module
  /// itself.
  virtual std::vector<Module*> blocks() { return {this}; }

  struct MaterialiseOptions {
    uint64_t seed = 0;
    at::Device device = at::kCPU;
    /// Where each piece goes: a tensor of `size` elements of fp32, e.g. a view of a flat buffer. Default: a tensor of
    /// its own.
    std::function<at::Tensor(const Parameter&, const std::vector<int64_t>& local_shape)> allocate = {};
    /// false leaves the values to the caller (a checkpoint is to be loaded).
    bool initialise = true;
  };
  /// Gives every slot of the tree its piece at rest: parameter `name` laid out as layouts[name], else `all I`, with the
  /// starting values of its Init. Throws UsageError for a layout whose name no parameter has, ShapeError as local_box.
  void materialise(const Mesh& mesh, const std::map<std::string, Layout>& layouts, const MaterialiseOptions& options);

 protected:
  virtual Tensors forward(Tensors inputs, const ForwardContext& context) = 0;

  Parameter& register_parameter(std::string name, ParameterSpec spec);
  /// Shares a slot that another module of the tree owns.
  Parameter& share_parameter(Parameter& parameter);
  /// Makes a child. Names of slots and children are unique within a module and hold no dot.
  template <typename M, typename... Args>
  M& register_module(const std::string& name, Args&&... args) {
    auto child = std::make_unique<M>(std::forward<Args>(args)...);
    M& reference = *child;
    adopt(name, std::move(child));
    return reference;
  }

 private:
  void adopt(const std::string& name, std::unique_ptr<Module> child);
  void prepend_name(const std::string& prefix);

  std::string name_;
  std::vector<std::unique_ptr<Parameter>> owned_;
  std::vector<Parameter*> own_;  ///< owned and shared, in order
  std::vector<std::unique_ptr<Module>> children_;
  std::vector<Hook> pre_hooks_;
  std::vector<Hook> post_hooks_;
};

/// A module of one tensor in, one out.
class Layer : public Module {
 protected:
  virtual at::Tensor forward(const at::Tensor& input, const ForwardContext& context) = 0;

 private:
  Tensors forward(Tensors inputs, const ForwardContext& context) final;
};

}  // namespace caravan
