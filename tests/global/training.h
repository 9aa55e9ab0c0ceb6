#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <torch/nn/module.h>

#include "caravan/global/global.h"
#include "caravan/global/module.h"
#include "tests/redistribute/denote.h"

namespace caravan::testing {

/// A module of torch::nn with its loss and data: what a user writes, who knows nothing of ranks.
struct Program {
  std::function<std::shared_ptr<torch::nn::Module>()> make;
  std::function<at::Tensor(torch::nn::Module&, const std::vector<at::Tensor>&)> loss;
  std::vector<at::Tensor> data;
  enum class Optimizer : uint8_t { adamw, sgd } optimizer = Optimizer::adamw;
  double clip = 0;  ///< torch::nn::utils::clip_grad_norm_; 0: none
  at::ScalarType type = at::kDouble;
};

/// How it is spread.
struct Spread {
  Axes axes;
  std::vector<NamedLayout> parameters;
  std::vector<Layout> data;  ///< of each tensor of Program::data; missing: replicated
  GlobalOptions options = {.is_strict = true};
};

/// What some steps leave.
struct Trained {
  std::vector<double> losses;
  std::vector<at::Tensor> gradients;  ///< of the first step
  std::vector<at::Tensor> parameters;
};

/// The same in fp32.
Program in_fp32(Program program);
inline constexpr double kFp32Tolerance = 1e-5;

inline constexpr int kSteps = 5;

/// The module, of the same values each time, also on rank threads.
std::shared_ptr<torch::nn::Module> made(const Program& program);
/// Runs the steps on plain tensors.
Trained train_alone(const Program& program);
/// Runs them as one rank of `mesh`, and expects what train_alone() has returned; see below. Returns what the context
/// reports.
std::string expect_same_on(const Mesh& mesh, const Trained& alone, const Program& program, const Spread& spread,
                           double tolerance = 1e-12);
/// Runs them on thread ranks as `spread` says, and expects on each the losses, gradients and parameters of
/// train_alone(): 1e-12 in fp64, of sums in another order; AdamW amplifies it to 1e-10 where a gradient is near 0.
/// In fp32 `tolerance` is of all of these, relative to the largest element: 1e-5, of rounding by 6e-8 in sums of some
/// hundred terms. Returns what the context of rank 0 reports.
std::string expect_same_training(const Program& program, const Spread& spread, double tolerance = 1e-12);

}  // namespace caravan::testing
