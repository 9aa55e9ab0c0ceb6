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

class Module;
class Next;

/// A hook around a module's forward: may change its inputs, context and outputs, and call `next` once, several times,
/// later, or never. Recomputation, ring attention, redistribution and quantization are such hooks.
using Around = std::function<Tensors(Module& module, Tensors inputs, const ForwardContext& context, const Next& next)>;

/// What a hook calls: the hooks inside it, then the module's forward. It may be kept and called again as long as the
/// module lives.
class Next {
 public:
  Tensors operator()(Tensors inputs, const ForwardContext& context) const;

 private:
  friend class Module;
  using Hooks = std::vector<std::shared_ptr<const Around>>;
  Module* module_ = nullptr;
  std::shared_ptr<const Hooks> hooks_;
  size_t index_ = 0;  ///< of the next hook
  size_t first_ = 0;  ///< the blocks to run
  size_t last_ = 0;   ///< 0: the module's forward instead of blocks
};

/// Keeps a hook in place; removes it when destroyed. May outlive the module.
class [[nodiscard]] Hook {
 public:
  Hook() = default;
  ~Hook() { remove(); }
  Hook(Hook&&) noexcept = default;
  Hook& operator=(Hook&& other) noexcept;
  void remove() noexcept;

 private:
  friend class Module;
  struct List;
  std::weak_ptr<List> list_;
  std::shared_ptr<const Around> hook_;
};

/// A part of a model: named parameter slots, children in order, and a forward function over tensors. The interface of
/// every technique: all splitting, gathering, freeing and moving of parameters and activations goes through slots and
/// hooks, from outside.
///
/// Construction creates shapes only; materialise allocates memory. A module is owned by its parent and never copied.
class Module {
 public:
  Module();
  virtual ~Module();
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  /// Runs the hooks, and inside them forward.
  Tensors run(Tensors inputs, const ForwardContext& context);
  /// The same for one tensor in, one out.
  at::Tensor operator()(const at::Tensor& input, const ForwardContext& context);
  /// Runs blocks() [first, last) one after the other, inside the hooks of this module: a stage of a pipeline.
  Tensors run_blocks(size_t first, size_t last, Tensors inputs, const ForwardContext& context);

  enum class Place : uint8_t { innermost, outermost };
  /// Adds a hook, innermost (inside all others) or outermost.
  Hook add_hook(Around hook, Place place = Place::innermost);
  /// Whether a run is more than forward.
  bool has_hooks() const noexcept;

  /// Dotted name from the root: "blocks.3.attention". "" for the root.
  const std::string& name() const noexcept { return name_; }
  /// The slots of this module alone, and of the whole tree in forward order (a tied weight once, where it first
  /// occurs).
  const std::vector<Parameter*>& own_parameters() const noexcept { return own_; }
  std::vector<Parameter*> parameters() const;
  std::vector<Module*> children() const;
  /// This module and everything below it, parents first, in order.
  std::vector<Module*> modules();
  /// The module of this dotted name below this one. Throws UsageError naming the nearest one that exists.
  Module& find(const std::string& name);

  /// Tensors that are state but not parameters (running statistics), by dotted name.
  virtual std::vector<std::pair<std::string, at::Tensor>> buffers() { return {}; }

  /// Whether its parent runs it; else the parent computes with its parameters, and hooks around it never run.
  virtual bool is_run() const noexcept { return true; }

  /// The ordered list that a pipeline cuts: running the blocks in order runs the module. Default: the module itself.
  virtual std::vector<Module*> blocks() { return {this}; }

  struct MaterialiseOptions {
    uint64_t seed = 0;
    at::Device device = at::kCPU;
    /// Where to allocate each piece: returns an fp32 tensor of `size` elements, e.g. a view of a flat buffer. Default:
    /// a separate tensor.
    std::function<at::Tensor(const Parameter&, const std::vector<int64_t>& local_shape)> allocate = {};
    /// false leaves the values to the caller (a checkpoint is to be loaded).
    bool initialise = true;
  };
  /// Allocates the sharded parameter of every slot of the tree: parameter `name` laid out as layouts[name], else `all
  /// I`, with the initial values of its Init. Throws UsageError for a layout whose name no parameter has, ShapeError as
  /// local_shape.
  void materialise(const Mesh& mesh, const std::map<std::string, Layout>& layouts, const MaterialiseOptions& options);

 protected:
  virtual Tensors forward(Tensors inputs, const ForwardContext& context) = 0;

  Parameter& register_parameter(std::string name, ParameterSpec spec);
  /// Shares a slot that another module of the tree owns.
  Parameter& share_parameter(Parameter& parameter);
  /// Takes a slot away from this module, for layers whose weight is cut into tiles; returns it if it was the module's
  /// own, else null.
  std::unique_ptr<Parameter> release_parameter(Parameter& parameter);
  /// Creates a child. Names of slots and children are unique within a module and contain no dot.
  template <typename M, typename... Args>
  M& register_module(const std::string& name, Args&&... args) {
    auto child = std::make_unique<M>(std::forward<Args>(args)...);
    M& reference = *child;
    adopt(name, std::move(child));
    return reference;
  }

 private:
  friend class Next;
  void adopt(const std::string& name, std::unique_ptr<Module> child);
  void prepend_name(const std::string& prefix);

  std::string name_;
  std::vector<std::unique_ptr<Parameter>> owned_;
  std::vector<Parameter*> own_;  ///< owned and shared, in order
  std::vector<std::unique_ptr<Module>> children_;
  std::shared_ptr<Hook::List> hooks_;
};

/// A module of one tensor in, one out.
class Layer : public Module {
 protected:
  virtual at::Tensor forward(const at::Tensor& input, const ForwardContext& context) = 0;

 private:
  Tensors forward(Tensors inputs, const ForwardContext& context) final;
};

}  // namespace caravan
