#include <gmock/gmock.h>

#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "caravan/base/error.h"
#include "caravan/module/adapter.h"
#include "caravan/techniques/data/ddp.h"
#include "tests/engine/parameters.h"

namespace caravan::testing::ddp_module_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

void set_values(torch::nn::Module& module, uint64_t seed) {
  const at::NoGradGuard no_grad;
  for (at::Tensor& weight : module.parameters()) weight.copy_(0.3 * random_tensor(weight.sizes(), ++seed));
}

/// A user's torch::nn::Module as in libtorch's documentation: two linear layers, buffers of several dtypes and a
/// parameter.
struct Net : torch::nn::Module {
  torch::nn::Linear in{nullptr}, out{nullptr};
  at::Tensor gain, mean, count;
  explicit Net(uint64_t seed) {
    in = register_module("in", torch::nn::Linear(5, 8));
    out = register_module("out", torch::nn::Linear(8, 3));
    gain = register_parameter("gain", at::ones({8}));
    mean = register_buffer("mean", at::full({8}, 0.1 * static_cast<double>(seed)));
    count = register_buffer("count", at::full({}, static_cast<int64_t>(seed)));
    set_values(*this, seed);
  }
  at::Tensor forward(const at::Tensor& x) { return out((in(x)-mean).tanh() * gain); }
};

ModuleAdapter adapt(const std::shared_ptr<Net>& net, const Mesh& mesh) {
  return {net, [net](const Tensors& inputs) { return Tensors{net->forward(inputs[0])}; }, mesh};
}

constexpr int64_t kRows = 12;
at::Tensor inputs() { return random_tensor({kRows, 5}, 90).to(at::kFloat); }
at::Tensor loss_of(const at::Tensor& y) { return y.square().sum() / kRows; }
/// Rank `rank` of `ranks`.
at::Tensor part_of(const at::Tensor& x, int rank, int ranks) { return x.chunk(ranks)[static_cast<size_t>(rank)]; }

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
    const Ddp ddp(model, mesh);
    for (size_t i = 0; i < first.parameters().size(); ++i) {
      EXPECT_TRUE(at::equal(net->parameters()[i], first.parameters()[i])) << i;
    }
    for (size_t i = 0; i < first.buffers().size(); ++i) {
      EXPECT_TRUE(at::equal(net->buffers()[i], first.buffers()[i])) << i;
    }
  });
}

/// The user's training loop is unchanged: .grad of their module, and a torch optimizer on their parameters.
TEST_P(DdpOwnModule, TrainsLikeOneProcessUnderTheUsersOptimizer) {
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
    Ddp ddp(model, mesh, {.bucket_bytes = 64});
    train(*net, [&] {
      ddp.begin_step();
      loss_of(model(part_of(inputs(), mesh.rank(), mesh.size()), {})).backward();
      ddp.finish_step();
    });
    // After five steps of fp32 sums in another order.
    for (size_t i = 0; i < want.parameters().size(); ++i) {
      EXPECT_TRUE(is_close(net->parameters()[i], want.parameters()[i], 1e-5)) << want.named_parameters()[i].key();
    }
  });
}

TEST_P(DdpOwnModule, ItsGradientsAreViewsOfTheFlatOnes) {
  on_mesh(axes(), [&](const Mesh& mesh) {
    const auto net = std::make_shared<Net>(0);
    ModuleAdapter model = adapt(net, mesh);
    Ddp ddp(model, mesh);
    for (int step = 0; step < 2; ++step) {
      ddp.begin_step();
      loss_of(model(inputs(), {})).backward();
      EXPECT_FALSE(net->gain.grad().defined()) << "gradients stand in the sums alone until they are reduced";
      ddp.finish_step();
      ddp.state().gradients.narrow(0, ddp.state().layout.trained_count()).fill_(3);
      for (const at::Tensor& weight : net->parameters()) {
        EXPECT_TRUE(at::equal(weight.grad(), at::full_like(weight, 3)));
      }
    }
  });
}

TEST(DdpOwnModule, MayBeInFp64) {
  on_mesh({{"dp", 2}}, [&](const Mesh& mesh) {
    const auto net = std::make_shared<Net>(0);
    net->to(at::kDouble);
    ModuleAdapter model = adapt(net, mesh);
    Ddp ddp(model, mesh);
    ddp.begin_step();
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
    { const Ddp ddp(model, mesh); }
    loss_of(net->forward(inputs())).backward();  // the memory of the parameters outlives the Ddp
    EXPECT_TRUE(net->gain.grad().defined());
    EXPECT_NO_THROW(Ddp(model, mesh));
  });
}

// ---- bf16: the tensors of the module are the unsharded parameters; the sharded ones are separate ----

std::shared_ptr<torch::nn::SequentialImpl> perceptron() {
  torch::nn::Sequential layers(torch::nn::Linear(5, 8), torch::nn::Tanh(), torch::nn::Linear(8, 3));
  set_values(*layers, 0);
  return layers.ptr();
}

/// Trains by hand with fp32 values that an optimizer updates and each step rounds.
std::vector<at::Tensor> trained_by_hand(int steps) {
  const auto net = perceptron();
  std::vector<at::Tensor> values;
  for (at::Tensor& weight : net->parameters()) values.push_back(weight.detach().clone());
  torch::optim::SGD optimizer(values, torch::optim::SGDOptions(0.2).momentum(0.9));
  for (int step = 0; step < steps; ++step) {
    for (size_t i = 0; i < values.size(); ++i) {
      at::Tensor weight = net->parameters()[i];
      weight.set_data(values[i].to(at::kBFloat16));
      weight.mutable_grad() = at::Tensor();
    }
    loss_of(net->forward(inputs().to(at::kBFloat16))).backward();
    for (size_t i = 0; i < values.size(); ++i) values[i].mutable_grad() = net->parameters()[i].grad().to(at::kFloat);
    optimizer.step();
  }
  return values;
}

TEST(DdpOwnModule, MayComputeInBf16) {
  const std::vector<at::Tensor> want = trained_by_hand(4);
  for (const int n : {1, 2}) {
    on_mesh({{"dp", n}}, [&](const Mesh& mesh) {
      const auto net = perceptron();
      ModuleAdapter model(net, mesh);
      Ddp ddp(model, mesh, {.compute_dtype = at::kBFloat16});
      torch::optim::SGD optimizer(ddp.parameters(), torch::optim::SGDOptions(0.2).momentum(0.9));
      for (int step = 0; step < 4; ++step) {
        ddp.begin_step();
        for (const Parameter* parameter : model.parameters()) {
          EXPECT_EQ(parameter->sharded().scalar_type(), at::kFloat);
          EXPECT_TRUE(same_bits(parameter->unsharded().detach(), parameter->sharded().to(at::kBFloat16)));
          EXPECT_TRUE(parameter->unsharded().is_same(net->named_parameters()[parameter->name()]));
        }
        loss_of(model(part_of(inputs(), mesh.rank(), n).to(at::kBFloat16), {})).backward();
        ddp.finish_step();
        optimizer.step();
      }
      for (size_t i = 0; i < want.size(); ++i) {
        // One rank computes the same bits. Two round other sums to 8 bits: 0.4 % of each gradient, of which four steps
        // move a weight by less than its size.
        EXPECT_TRUE(is_close(model.parameters()[i]->sharded(), want[i], n == 1 ? 0 : 0.01)) << i;
      }
    });
  }
}

/// It would train in vain: the tensors of the module are only copies.
TEST(DdpOwnModule, AnOptimizerOnTheCopiesIsNoticed) {
  on_mesh({{"dp", 2}}, [&](const Mesh& mesh) {
    const auto net = perceptron();
    ModuleAdapter model(net, mesh);
    Ddp ddp(model, mesh, {.compute_dtype = at::kBFloat16});
    torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.2));
    ddp.begin_step();
    loss_of(model(inputs().to(at::kBFloat16), {})).backward();
    ddp.finish_step();
    EXPECT_THAT(message_of<c10::Error>([&] { optimizer.step(); }),
                AllOf(HasSubstr("is not here: the module computes with copies"),
                      HasSubstr("give the optimizer engine.parameters() instead of module->parameters()")));
    net->zero_grad();
    ddp.begin_step();  // a learning rate of 0, or a step that was skipped, is not an error
    loss_of(model(inputs().to(at::kBFloat16), {})).backward();
    ddp.finish_step();
  });
}

// ---- units: a convolutional network with batch norm ----

/// Batch norm takes its statistics of the rows that a rank has, so the reference runs the same rows together.
struct ConvNet : torch::nn::Module {
  torch::nn::Conv2d first{register_module("first", torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 5, 3).padding(1)))};
  torch::nn::BatchNorm2d norm{register_module("norm", torch::nn::BatchNorm2d(5))};
  torch::nn::Conv2d second{register_module("second", torch::nn::Conv2d(torch::nn::Conv2dOptions(5, 3, 3)))};
  torch::nn::Linear out{register_module("out", torch::nn::Linear(3 * 4 * 4, 7))};
  ConvNet() { set_values(*this, 20); }

  at::Tensor head(const at::Tensor& x) { return out(second(x).relu().flatten(1)); }
  at::Tensor forward(const at::Tensor& x) { return head(norm(first(x)).relu()); }
  /// The same as units, which a technique may gather and free one by one.
  static std::vector<ModuleAdapter::Unit> units(const std::shared_ptr<ConvNet>& net) {
    return {{"stem",
             {net->first.ptr(), net->norm.ptr()},
             [net](const Tensors& inputs) { return Tensors{net->norm(net->first(inputs[0])).relu()}; }},
            {"head", {net->second.ptr(), net->out.ptr()}, [net](const Tensors& inputs) {
               return Tensors{net->head(inputs[0])};
             }}};
  }
};

at::Tensor images() { return random_tensor({kRows, 2, 6, 6}, 33).to(at::kFloat); }

/// Five steps on one process, on the slices of `ranks` ranks one after another.
template <class N>
std::vector<at::Tensor> trained_on_slices(N& net, int ranks) {
  torch::optim::SGD optimizer(net.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int step = 0; step < 5; ++step) {
    optimizer.zero_grad();
    for (int rank = 0; rank < ranks; ++rank) loss_of(net.forward(part_of(images(), rank, ranks))).backward();
    optimizer.step();
  }
  return net.parameters();
}

/// The same five steps on the ranks of a mesh; the parameters must be the same afterwards.
void train_and_compare(Engine& engine, const std::vector<at::Tensor>& want) {
  const Mesh& mesh = engine.mesh();
  Module& model = engine.model();
  const std::vector<at::Tensor> parameters = engine.parameters();
  torch::optim::SGD optimizer(parameters, torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int step = 0; step < 5; ++step) {
    optimizer.zero_grad();
    engine.begin_step();
    loss_of(model(part_of(images(), mesh.rank(), mesh.size()), {})).backward();
    engine.finish_step();
    optimizer.step();
  }
  ASSERT_EQ(model.parameters().size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {  // after five steps of fp32 sums in another order
    const Parameter& parameter = *model.parameters()[i];
    EXPECT_TRUE(is_close(parameter.sharded(), piece_of(want[i].detach(), parameter.sharded_layout(), mesh), 1e-5))
        << parameter.name() << ", " << mesh.where();
  }
}

TEST(DdpOwnModule, WithBatchNormTrainsLikeOneProcessOnTheSameSlices) {
  for (const bool has_units : {false, true}) {
    ConvNet reference;
    const std::vector<at::Tensor> want = trained_on_slices(reference, 2);
    on_mesh({{"dp", 2}}, [&](const Mesh& mesh) {
      const auto net = std::make_shared<ConvNet>();
      const auto forward = [net](const Tensors& inputs) { return Tensors{net->forward(inputs[0])}; };
      ModuleAdapter model =
          has_units ? ModuleAdapter(net, ConvNet::units(net), mesh) : ModuleAdapter(net, forward, mesh);
      Ddp ddp(model, mesh);
      train_and_compare(ddp, want);
      for (const Parameter* parameter : model.parameters())
        EXPECT_TRUE(parameter->unsharded().is_same(parameter->sharded()));
    });
  }
}

/// The tensors of the module are unsharded parameters, gathered and freed. The shards stay, and the optimizer updates
/// them.
TEST(DdpOwnModule, InShardsTrainsLikeOneProcessOnTheSameSlices) {
  for (const int n : {2, 3}) {
    ConvNet reference;
    const std::vector<at::Tensor> want = trained_on_slices(reference, n);
    on_mesh({{"dp", n}}, [&](const Mesh& mesh) {
      const auto net = std::make_shared<ConvNet>();
      ModuleAdapter model(net, ConvNet::units(net), mesh);
      Strategy strategy = whole_model(model, mesh);
      add_data_axis(strategy, mesh, "dp");
      shard_at_rows(strategy, mesh, "dp");
      Engine engine(model, mesh, strategy);
      train_and_compare(engine, want);
      EXPECT_THAT(message_of<std::exception>([&] { net->forward(images()); }),
                  HasSubstr("is read while it is sharded"));
      const at::Tensor y = model(part_of(images(), 0, n), {.phase = Phase::evaluate});
      EXPECT_TRUE(is_close(y, reference.forward(part_of(images(), 0, n)), 1e-4));  // of parameters within 1e-5
    });
  }
}

std::shared_ptr<torch::nn::SequentialImpl> convolutions() {
  torch::nn::Sequential layers(torch::nn::Conv2d(2, 5, 3), torch::nn::BatchNorm2d(5), torch::nn::ReLU(),
                               torch::nn::Conv2d(5, 4, 4));
  set_values(*layers, 40);
  return layers.ptr();
}

TEST(DdpOwnModule, AParameterAddedAfterwardsIsNamed) {
  on_mesh({{"dp", 2}}, [](const Mesh& mesh) {
    const auto net = std::make_shared<Net>(0);
    ModuleAdapter model = adapt(net, mesh);
    Ddp ddp(model, mesh);
    const auto step = [&] {
      ddp.begin_step();
      loss_of(model(part_of(inputs(), mesh.rank(), 2), {})).backward();
      ddp.finish_step();
    };
    EXPECT_NO_THROW(step());
    net->register_parameter("late", at::ones({3}));
    EXPECT_THAT(message_of<UsageError>(step), ::testing::HasSubstr("late: was added to the module"));
  });
}

TEST(DdpOwnModule, ASequentialHasAUnitForEachChild) {
  struct Run {
    std::shared_ptr<torch::nn::SequentialImpl> layers = convolutions();
    std::vector<at::Tensor> parameters() const { return layers->parameters(); }
    at::Tensor forward(const at::Tensor& x) const { return layers->forward(x); }
  } reference;
  const std::vector<at::Tensor> want = trained_on_slices(reference, 2);
  for (const bool is_sharded : {false, true}) {
    on_mesh({{"dp", 2}}, [&](const Mesh& mesh) {
      ModuleAdapter model(convolutions(), mesh);
      ASSERT_EQ(model.blocks().size(), 4U);
      Strategy strategy = whole_model(model, mesh);
      add_data_axis(strategy, mesh, "dp");
      if (is_sharded) shard_at_rows(strategy, mesh, "dp");
      Engine engine(model, mesh, strategy);
      train_and_compare(engine, want);
    });
  }
}

}  // namespace
}  // namespace caravan::testing::ddp_module_test
