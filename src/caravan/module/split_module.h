#pragma once

#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "caravan/global/context.h"
#include "caravan/global/module.h"
#include "caravan/module/parameter.h"

namespace caravan {

/// A torch::nn::Module whose parameters are split over axes of the mesh, behind the seam of techniques: the module's
/// own tensors are global tensors (global/global.h) on these axes, whose pieces are the unsharded parameters of the
/// slots. What goes into the module and comes out of it is whole on each of their ranks (I).
class SplitModule {
 public:
  /// The axes are those that the layouts name. Throws UsageError if they name dp or pp, which techniques use.
  SplitModule(const std::vector<NamedLayout>& layouts, const Mesh& mesh);
  ~SplitModule();
  SplitModule(const SplitModule&) = delete;
  SplitModule& operator=(const SplitModule&) = delete;

  /// Throws UsageError for a pattern that fits none of the names, naming the nearest.
  void check_patterns(const std::vector<std::string>& names) const;
  /// The layout of a parameter on every axis of the mesh, R as I. Throws ShapeError, LayoutError naming it.
  Layout layout_of(const std::string& name, const at::Tensor& tensor) const;
  /// This rank's part of a tensor that it has whole, in memory of its own.
  at::Tensor piece_of_whole(const std::string& name, const at::Tensor& tensor) const;
  /// Makes `tensor`, of the module, a global tensor whose piece is the unsharded parameter of `slot`, which gets its
  /// gradients.
  void add(Parameter& slot, const at::Tensor& tensor);
  /// A forward of the module, whose tensors are plain outside.
  std::vector<at::Tensor> run(const std::function<std::vector<at::Tensor>(std::vector<at::Tensor>)>& forward,
                              const std::vector<at::Tensor>& inputs);

 private:
  struct Split {
    Parameter* slot;
    at::Tensor tensor;
  };
  void follow_dtypes();

  Mesh mesh_;
  std::vector<NamedLayout> layouts_;
  GlobalContext context_;
  std::vector<Split> split_;
};

}  // namespace caravan
