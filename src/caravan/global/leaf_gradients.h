#pragma once

#include <map>
#include <vector>

#include <ATen/core/Tensor.h>

namespace caravan {

/// Brings gradients of parameters to the layouts of the parameters at the end of a backward pass: those that lie alike
/// and have one dtype go through one collective per axis together.
class LeafGradients {
 public:
  /// Whenever a gradient has been added to `leaf`, its parameter is brought in order when the backward pass ends.
  static void watch(const at::Tensor& leaf);
  /// Called when a gradient has been added to `leaf`.
  void add(const at::Tensor& leaf);

 private:
  void finish(int pass);

  /// By the number of the backward pass, in which others may run (checkpoints of autograd).
  std::map<int, std::vector<at::Tensor>> leaves_;
};

}  // namespace caravan
