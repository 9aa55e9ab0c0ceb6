#pragma once

#include <memory>
#include <string>
#include <vector>

#include "caravan/module/plan/plan.h"

namespace caravan {

/// y = x W^T for ranks that hold pieces of x and W. x [rows, sequence, in], W [out, in], both local; y has as many
/// local rows as x. Every rank calls forward and backward in the same order, without gradients.
class SplitProduct {
 public:
  virtual ~SplitProduct() = default;
  /// The layout of y. Throws LayoutError naming module `what` for an x that the product does not support.
  virtual Layout result(const Layout& x, const std::string& what) const = 0;
  /// One result for each weight.
  virtual Tensors forward(const at::Tensor& x, const Tensors& weights) const = 0;
  struct Gradients {
    at::Tensor x{};
    Tensors weights{};
  };
  /// `dys`: one for each weight, contiguous. Gradients that are not needed are undefined.
  virtual Gradients backward(const at::Tensor& x, const Tensors& weights, const Tensors& dys, bool needs_x,
                             const std::vector<bool>& needs_weights) const = 0;
};

/// Operands of products: x as a matrix of all its rows, and an empty sum in the dtype of accumulation.
at::Tensor matrix_of(const at::Tensor& x);
at::Tensor empty_sum(int64_t rows, int64_t columns, const at::Tensor& like);

/// Adds rows to `plan`: the Linear children `names` of the modules that match `parent` multiply as `product` says. They
/// have the same input, which is moved once for all of them: the first computes the results of all. Autograd keeps only
/// the local pieces of x and the weights. A bias is added afterwards.
///   weight, bias  the parameter rows of each; the weight's compute is the piece that `product` takes
void add_split_linears(Plan& plan, const std::string& parent, const std::vector<std::string>& names,
                       const std::vector<Plan::ParameterRow>& parameters, std::shared_ptr<const SplitProduct> product);

}  // namespace caravan
