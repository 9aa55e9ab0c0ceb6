#pragma once

#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "caravan/global/context.h"
#include "caravan/global/module.h"
#include "caravan/global/state.h"
#include "caravan/module/context.h"
#include "caravan/module/parameter.h"

namespace torch::nn {
class Module;
}

namespace caravan {

struct Placed;

/// A torch::nn::Module whose parameters are split over axes of the mesh, behind the seam of techniques: the module's
/// own tensors are global tensors (global/global.h) on these axes, whose pieces are the unsharded parameters of the
/// slots. What goes into the module and comes out of it is whole on each of their ranks (I).
class SplitModule {
 public:
  using Forward = std::function<std::vector<at::Tensor>(std::vector<at::Tensor>)>;

  /// The axes are those that the layouts name. Throws UsageError if they name dp or pp, which techniques use.
  SplitModule(const std::vector<NamedLayout>& layouts, const Mesh& mesh);
  ~SplitModule();
  SplitModule(const SplitModule&) = delete;
  SplitModule& operator=(const SplitModule&) = delete;

  /// Throws UsageError for a pattern that matches no parameter and no buffer, naming the nearest, and for a layout that
  /// shards a buffer.
  void check_patterns(const torch::nn::Module& net) const;
  /// Whether the layouts name an axis that the mesh has.
  bool splits() const noexcept { return !context_.state()->options().axes.empty(); }
  /// The layout of a parameter on every axis of the mesh, R as I. Throws ShapeError, LayoutError naming it.
  Layout layout_of(const std::string& name, const at::Tensor& tensor) const;
  /// This rank's part of a tensor that it has whole, in memory of its own.
  at::Tensor piece_of_whole(const std::string& name, const at::Tensor& tensor) const;
  /// Makes `tensor`, of the module, a global tensor whose piece is the unsharded parameter of `slot`, which gets its
  /// gradients.
  void add(Parameter& slot, const at::Tensor& tensor);
  /// A forward of the module, or of one of its units, whose tensors are plain outside. Random numbers depend on the
  /// unit, the step and the micro-batch, so that a forward that is repeated, for backward or by the caller, draws the
  /// same, and on the rank's coordinates on the axes that the module does not know, where data differ.
  std::vector<at::Tensor> run(const std::string& unit, const Forward& forward, const std::vector<at::Tensor>& inputs,
                              const ForwardContext& context);

 private:
  struct Split {
    Parameter* slot;
    at::Tensor tensor;
    bool has_hook;
  };
  /// Makes `tensor` the global tensor of this piece.
  void put(const at::Tensor& piece, const Placed* placed, const at::Tensor& tensor) const;
  void follow_dtypes();
  uint64_t seed_of(const std::string& unit, const ForwardContext& context) const;

  Mesh mesh_;
  std::vector<NamedLayout> layouts_;
  GlobalContext context_;
  std::vector<Split> split_;
};

}  // namespace caravan
