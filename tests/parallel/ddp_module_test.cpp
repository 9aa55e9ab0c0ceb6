#include <gmock/gmock.h>

#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "caravan/base/error.h"
#include "caravan/module/adapter.h"
#include "caravan/parallel/ddp.h"
#include "tests/redistribute/denote.h"

namespace caravan::testing {
namespace {

using ::testing::HasSubstr;

/// A user's torch::nn::Module as in libtorch's documentation: two linear layers, buffers of several dtypes, a parameter
/// of its own.
struct Net : torch::nn::Module {
  torch::nn::Linear in{nullptr}, out{nullptr};
  at::Tensor gain, mean, count;
  explicit Net(uint64_t seed) {
    in = register_module("in", torch::nn::Linear(5, 8));
    out = register_module("out", torch::nn::Linear(8, 3));
    gain = register_parameter("gain", at::ones({8}));
    mean = register_buffer("mean", at::full({8}, 0.1 * static_cast<double>(seed)));
    count = register_buffer("count", at::full({}, static_cast<int64_t>(seed)));
    const at::NoGradGuard no_grad;
    for (at::Tensor& weight : parameters()) weight.copy_(0.3 * random_tensor(weight.sizes(), ++seed));
  }
  at::Tensor forward(const at::Tensor& x) { return out((in(x)-mean).tanh() * gain); }
};

ModuleAdapter adapt(const std::shared_ptr<Net>& net, const Mesh& mesh) {
  return {net, [net](const Tensors& inputs) { return Tensors{net->forward(inputs[0])}; }, mesh};
}

constexpr int64_t kRows = 12;
at::Tensor inputs() { return random_tensor({kRows, 5}, 90).to(at::kFloat); }
at::Tensor loss_of(const at::Tensor& y) { return y.square().sum() / kRows; }

class DdpOwnModule : public ::testing::TestWithParam<int> {
 protected:
  Axes axes() const { return {{"dp", GetParam()}}; }
};

INSTANTIATE_TEST_SUITE_P(Thread, DdpOwnModule, ::testing::Values(1, 2, 3, 4));

TEST_P(DdpOwnModule, StartsFromTheParametersAndBuffersOfCoordinate0) {
  const Net first(0);
  on_mesh(axes(), [&](const Mesh& mesh) {
    const auto net = std::make_shared<Net>(100 * mesh.rank());  // other values on each rank
    ModuleAdapter model = adapt(net, mesh);
    const Ddp ddp(model, mesh["dp"]);
    for (size_t i = 0; i < first.parameters().size(); ++i) {
      EXPECT_TRUE(at::equal(net->parameters()[i], first.parameters()[i])) << i;
    }
    for (size_t i = 0; i < first.buffers().size(); ++i) {
      EXPECT_TRUE(at::equal(net->buffers()[i], first.buffers()[i])) << i;
    }
  });
}

/// The user's training loop is unchanged: .grad of their module, and a torch optimizer on their parameters.
TEST_P(DdpOwnModule, TrainsAsOneProcessUnderTheUsersOptimizer) {
  const auto train = [](Net& net, const auto& backward) {
    torch::optim::SGD optimizer(net.parameters(), torch::optim::SGDOptions(0.2).momentum(0.9));
    for (int step = 0; step < 5; ++step) {
      optimizer.zero_grad();
      backward();
      optimizer.step();
    }
  };
  Net want(0);
  train(want, [&] { loss_of(want.forward(inputs())).backward(); });
  on_mesh(axes(), [&](const Mesh& mesh) {
    const auto net = std::make_shared<Net>(0);
    ModuleAdapter model = adapt(net, mesh);
    Ddp ddp(model, mesh["dp"], {.bucket_bytes = 64});
    const int64_t rows = kRows / mesh.size();
    const at::Tensor x = inputs().narrow(0, mesh.rank() * rows, rows);
    train(*net, [&] {
      ddp.begin_step();
      ddp.arm();
      loss_of(model(x, {})).backward();
      ddp.finish_step();
    });
    // After five steps of fp32 sums in another order.
    for (size_t i = 0; i < want.parameters().size(); ++i) {
      EXPECT_TRUE(is_close(net->parameters()[i], want.parameters()[i], 1e-5)) << want.named_parameters()[i].key();
    }
  });
}

TEST_P(DdpOwnModule, ItsGradientsAreViewsOfTheBuckets) {
  on_mesh(axes(), [&](const Mesh& mesh) {
    const auto net = std::make_shared<Net>(0);
    ModuleAdapter model = adapt(net, mesh);
    Ddp ddp(model, mesh["dp"]);
    ddp.begin_step();
    ddp.arm();
    loss_of(model(inputs(), {})).backward();
    EXPECT_FALSE(net->gain.grad().defined()) << "gradients stand in the buckets alone until they are paid";
    ddp.finish_step();
    ddp.state().gradients.fill_(3);
    for (const at::Tensor& weight : net->parameters()) {
      EXPECT_TRUE(at::equal(weight.grad(), at::full_like(weight, 3)));
    }
  });
}

/// The layers hold their parameters and would never see a copy, so that gradients would silently stay local.
TEST(DdpOwnModule, CannotComputeWithCopies) {
  on_mesh({{"dp", 1}}, [&](const Mesh& mesh) {
    const auto net = std::make_shared<Net>(0);
    ModuleAdapter model = adapt(net, mesh);
    EXPECT_THAT(message_of<UsageError>([&] { Ddp(model, mesh["dp"], {.compute_dtype = at::kBFloat16}); }),
                HasSubstr("gain: belongs to a torch::nn::Module"));
    Parameter& gain = *model.parameters()[0];
    EXPECT_THAT(message_of<UsageError>([&] { gain.set_compute(at::ones({8})); }), HasSubstr("gain: belongs to"));
    EXPECT_NO_THROW(gain.set_compute(gain.rest()));
  });
}

TEST(DdpOwnModule, MayBeInFp64) {
  on_mesh({{"dp", 2}}, [&](const Mesh& mesh) {
    const auto net = std::make_shared<Net>(0);
    net->to(at::kDouble);
    ModuleAdapter model = adapt(net, mesh);
    Ddp ddp(model, mesh["dp"]);
    ddp.begin_step();
    ddp.arm();
    loss_of(model(inputs().to(at::kDouble), {})).backward();
    ddp.finish_step();
    EXPECT_EQ(net->gain.grad().scalar_type(), at::kDouble);
    EXPECT_GT(net->gain.grad().abs().max().item<double>(), 0);
  });
}

TEST(DdpOwnModule, LeavesNoHookBehind) {
  on_mesh({{"dp", 1}}, [&](const Mesh& mesh) {
    const auto net = std::make_shared<Net>(0);
    ModuleAdapter model = adapt(net, mesh);
    { const Ddp ddp(model, mesh["dp"]); }
    loss_of(net->forward(inputs())).backward();  // the memory of the parameters outlives the Ddp
    EXPECT_TRUE(net->gain.grad().defined());
    EXPECT_NO_THROW(Ddp(model, mesh["dp"]));
  });
}

}  // namespace
}  // namespace caravan::testing
