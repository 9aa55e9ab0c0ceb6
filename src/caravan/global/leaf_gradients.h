#pragma once

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
  void finish();

  std::vector<at::Tensor> leaves_;
  int pass_ = -1;  ///< number of the backward pass that finish() ends; -1: none
};

}  // namespace caravan
