#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include "caravan/engine/engine.h"
#include "caravan/module/adapter.h"
#include "caravan/registry/setting.h"
#include "tests/techniques/together/one_process.h"

namespace caravan::testing {

/// A user's module: convolutions, batch norm, and a branch that not every forward takes.
struct UserNet : torch::nn::Module {
  torch::nn::Conv2d first{nullptr}, branch{nullptr};
  torch::nn::BatchNorm2d norm{nullptr};
  torch::nn::Linear out{nullptr};
  bool takes_branch = true;

  UserNet();
  at::Tensor stem(const at::Tensor& x);
  at::Tensor side(const at::Tensor& x) { return takes_branch ? x + branch(x).tanh() : x; }
  at::Tensor head(const at::Tensor& x) { return out(x.flatten(1)); }
  at::Tensor forward(const at::Tensor& x) { return head(side(stem(x))); }
  /// "stem", "side", "head".
  static std::vector<ModuleAdapter::Unit> units(const std::shared_ptr<UserNet>& net);
};

/// How a UserNet is trained: some steps of SGD on small batches, one for each rank and micro-batch.
struct UserRun {
  int ranks = 2;
  Setting choice{"data_parallel"};
  at::ScalarType dtype = at::kDouble;
  at::ScalarType compute = at::kFloat;  ///< as Strategy::compute_dtype
  int micros = 1;
  int steps = 3;
  Buffers buffers = Buffers::broadcast;
  bool static_graph = true;
  bool has_units = true;  ///< false: one function runs the whole module
  /// Null: every rank has a batch in every step, which begins with begin_step(); else with begin_join_step().
  std::function<bool(int step, int rank)> has_batch{};
  /// Null: always.
  std::function<bool(int step, int rank, int micro)> takes_branch{};

  std::string to_string() const;
};

struct UserStep {
  double loss = 0;
  double norm = 0;
  Named gradients;
  Named buffers;  ///< after the step
};

/// Runs it on thread ranks; returns the steps of rank 0, whole. Fails the test if ranks end a step with different
/// buffers, unless they are local.
std::vector<UserStep> on_ranks(const UserRun& run);

/// Runs it in one process: the same slices one after another, each from the buffers at the start of the step.
std::vector<UserStep> in_one_process(const UserRun& run);

/// Fails the test if losses, gradients, norms or buffers of a step are further apart than `tolerance` (see distance).
void expect_equal(const std::vector<UserStep>& got, const std::vector<UserStep>& want, double tolerance);

}  // namespace caravan::testing
