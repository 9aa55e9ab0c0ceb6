#include <functional>
#include <limits>
#include <memory>
#include <vector>

#include <gtest/gtest.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim.h>

#include "caravan/global/global.h"
#include "tests/redistribute/denote.h"

namespace caravan::testing::optimizers_test {
namespace {

using Tensors = std::vector<at::Tensor>;
using Make = std::function<std::unique_ptr<torch::optim::Optimizer>(Tensors)>;
using Clip = std::function<double(Tensors)>;

struct Trained {
  Tensors parameters;
  std::vector<double> norms;
};

const std::vector<std::vector<int64_t>> kShapes{{6, 5}, {7}, {4, 2, 3}, {}};

/// Steps on a sum of quartics of the parameters, whose gradients are no multiples of them.
Trained train(const Make& make, const Clip& clip, const std::function<at::Tensor(const at::Tensor&, size_t)>& place) {
  Tensors parameters, targets;
  for (size_t i = 0; i < kShapes.size(); ++i) {
    parameters.push_back(place(random_tensor(kShapes[i], 10 + i).requires_grad_(), i));
    targets.push_back(place(random_tensor(kShapes[i], 20 + i), i));
  }
  const auto optimizer = make(parameters);
  Trained trained;
  for (int step = 0; step < 5; ++step) {
    const auto loss = [&] {
      optimizer->zero_grad();
      at::Tensor sum;
      for (size_t i = 0; i < parameters.size(); ++i) {
        const at::Tensor term = (parameters[i] - targets[i]).pow(4).sum() + parameters[i].pow(2).sum();
        sum = sum.defined() ? sum + term : term;
      }
      sum.backward();
      return sum;
    };
    if (clip) {
      loss();
      trained.norms.push_back(clip(parameters));
      optimizer->step();
    } else {
      optimizer->step(loss);
    }
  }
  for (const at::Tensor& each : parameters) {
    trained.parameters.push_back(is_global(each) ? full(each.detach()).clone() : each.detach().clone());
  }
  return trained;
}

/// A layout for each parameter; the last has no dims.
void check(const Make& make, const Clip& clip, const Axes& axes, const std::vector<Layout>& layouts,
           const std::vector<std::string>& may_run_whole = {}) {
  const Trained alone = train(make, clip, [](const at::Tensor& x, size_t) { return x; });
  on_mesh(axes, [&](const Mesh& mesh) {
    GlobalOptions options;
    options.is_strict = true;  // no op may run on whole tensors
    options.may_run_whole = may_run_whole;
    const GlobalContext context(mesh, options);
    const Trained spread =
        train(make, clip, [&](const at::Tensor& x, size_t i) { return distribute(x, layouts[i], context); });
    for (size_t i = 0; i < alone.parameters.size(); ++i) {
      EXPECT_TRUE(is_close(alone.parameters[i], spread.parameters[i], 1e-12)) << "parameter " << i;
    }
    for (size_t i = 0; i < alone.norms.size(); ++i) {
      EXPECT_NEAR(alone.norms[i], spread.norms[i], 1e-12 * alone.norms[i]) << "step " << i;
    }
    EXPECT_TRUE(!may_run_whole.empty() || context.report().empty()) << context.report();
  });
}

/// Even on one axis, uneven on one of three ranks, and on two axes.
void check_all(const Make& make, const Clip& clip = {}, const std::vector<std::string>& may_run_whole = {}) {
  const Layout rows{{"dp", Shard{0}}}, none;
  check(make, clip, {{"dp", 2}}, {rows, rows, rows, none}, may_run_whole);
  check(make, clip, {{"dp", 3}}, {rows, rows, {{"dp", Shard{2}}}, none}, may_run_whole);
  check(make, clip, {{"dp", 2}, {"tp", 2}},
        {{{"dp", Shard{0}}, {"tp", Shard{1}}}, {{"tp", Shard{0}}}, {{"dp", Shard{0}}, {"tp", Shard{0}}}, none},
        may_run_whole);
}

template <typename Optimizer, typename Options>
Make make_of(const Options& options) {
  return [options](Tensors parameters) { return std::make_unique<Optimizer>(std::move(parameters), options); };
}

TEST(GlobalOptimizers, adam) { check_all(make_of<torch::optim::Adam>(torch::optim::AdamOptions(0.05))); }
TEST(GlobalOptimizers, adam_with_amsgrad_and_decay) {
  check_all(make_of<torch::optim::Adam>(torch::optim::AdamOptions(0.05).amsgrad(true).weight_decay(0.1)));
}
TEST(GlobalOptimizers, adamw) { check_all(make_of<torch::optim::AdamW>(torch::optim::AdamWOptions(0.05))); }
TEST(GlobalOptimizers, sgd_with_momentum) {
  check_all(make_of<torch::optim::SGD>(torch::optim::SGDOptions(0.02).momentum(0.9).weight_decay(0.1)));
}
TEST(GlobalOptimizers, sgd_with_nesterov) {
  check_all(make_of<torch::optim::SGD>(torch::optim::SGDOptions(0.02).momentum(0.9).nesterov(true)));
}
TEST(GlobalOptimizers, adagrad) { check_all(make_of<torch::optim::Adagrad>(torch::optim::AdagradOptions(0.05))); }
TEST(GlobalOptimizers, rmsprop) {
  check_all(make_of<torch::optim::RMSprop>(torch::optim::RMSpropOptions(0.01).centered(true).momentum(0.5)));
}
TEST(GlobalOptimizers, lbfgs) {
  // It flattens all gradients into one vector, for which an axis that cuts a dim between its rows is gathered.
  check_all(make_of<torch::optim::LBFGS>(torch::optim::LBFGSOptions(0.1).max_iter(3)), {},
            {"aten::view", "aten::cat", "aten::reshape", "aten::_unsafe_view", "aten::slice.Tensor"});
}

Clip clip_norm(double norm, double p) {
  return [=](Tensors parameters) { return torch::nn::utils::clip_grad_norm_(parameters, norm, p); };
}

const Make kSgd = make_of<torch::optim::SGD>(torch::optim::SGDOptions(0.05));

TEST(GlobalClip, norm_2) { check_all(kSgd, clip_norm(0.5, 2)); }
TEST(GlobalClip, norm_1) { check_all(kSgd, clip_norm(0.5, 1)); }
TEST(GlobalClip, norm_3) { check_all(kSgd, clip_norm(0.5, 3)); }
TEST(GlobalClip, norm_of_infinity) { check_all(kSgd, clip_norm(0.5, std::numeric_limits<double>::infinity())); }
TEST(GlobalClip, value) {
  check_all(kSgd, [](Tensors parameters) {
    torch::nn::utils::clip_grad_value_(parameters, 0.3);
    return 1.0;
  });
}

}  // namespace
}  // namespace caravan::testing::optimizers_test
