#include "caravan/module/adapter.h"

#include <gmock/gmock.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include "caravan/base/error.h"
#include "caravan/comm/record.h"
#include "tests/redistribute/denote.h"

namespace caravan::testing::adapter_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Net : torch::nn::Module {
  torch::nn::Linear in{nullptr}, out{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  Net() {
    in = register_module("in", torch::nn::Linear(3, 4));
    norm = register_module("norm", torch::nn::BatchNorm1d(4));
    out = register_module("out", torch::nn::Linear(4, 2));
    in->bias.set_requires_grad(false);
  }
  at::Tensor forward(const at::Tensor& x) { return out(norm(in(x)).relu()); }
};

ModuleAdapter adapt(const std::shared_ptr<Net>& net, const Mesh& mesh) {
  return {net, [net](const Tensors& inputs) { return Tensors{net->forward(inputs[0])}; }, mesh};
}

Mesh mesh_of(const Axes& axes) { return Mesh::create(make_record_world(0, num_ranks(axes)), axes); }

TEST(Adapter, GivesSlotsUnderTheModulesOwnNames) {
  const auto net = std::make_shared<Net>();
  ModuleAdapter adapter = adapt(net, mesh_of({{"dp", 2}}));
  std::vector<std::string> names;
  std::vector<bool> decays;
  for (const Parameter* parameter : adapter.parameters()) {
    names.push_back(parameter->name());
    decays.push_back(parameter->spec().decays);
    EXPECT_TRUE(parameter->sharded_layout()["dp"].is_invariant());
  }
  EXPECT_THAT(names, ElementsAre("in.weight", "in.bias", "norm.weight", "norm.bias", "out.weight", "out.bias"));
  EXPECT_THAT(decays, ElementsAre(true, false, false, false, true, false));
  EXPECT_FALSE(adapter.parameters()[1]->requires_grad());
  EXPECT_TRUE(adapter.parameters()[0]->requires_grad());
  std::vector<std::string> buffers;
  for (const auto& [name, tensor] : adapter.buffers()) buffers.push_back(name);
  EXPECT_THAT(buffers, ElementsAre("norm.running_mean", "norm.running_var", "norm.num_batches_tracked"));
}

TEST(Adapter, SlotAndModuleShareOneTensor) {
  const auto net = std::make_shared<Net>();
  ModuleAdapter adapter = adapt(net, mesh_of({}));
  const at::Tensor x = at::ones({4, 3});
  const at::Tensor y = adapter(x, {});
  EXPECT_TRUE(at::equal(y, net->forward(x)));
  y.sum().backward();
  EXPECT_TRUE(net->out->weight.grad().is_same(adapter.parameters()[4]->sharded().grad()));
  {
    const at::NoGradGuard no_grad;
    at::Tensor rest = adapter.parameters()[4]->sharded();
    rest.set_data(at::full({2, 4}, 7.0F));  // as a technique moves it into a flat buffer
  }
  EXPECT_EQ(net->out->weight[1][3].item<double>(), 7);
}

/// A list is never taken for one tensor, whose rows would be taken for outputs.
TEST(Adapter, TakesOneTensorOrAList) {
  const auto net = std::make_shared<Net>();
  ModuleAdapter adapter(
      net,
      [net](const Tensors& in) {
        return Tensors{net->forward(in.at(0)), in.back()};
      },
      mesh_of({}));
  const at::Tensor x = at::ones({4, 3});
  EXPECT_TRUE(at::equal(adapter(Tensors{x, x + 1}, {})[1], x + 1));
  EXPECT_TRUE(at::equal(adapter({x}, {})[1], x));
  EXPECT_EQ(adapter({x}, {})[0].size(0), 4);
}

TEST(Adapter, AWeightRegisteredTwiceIsOneSlot) {
  struct Tied : torch::nn::Module {
    at::Tensor w = register_parameter("w", at::ones({2, 2}));
    at::Tensor again = register_parameter("again", w);
  };
  ModuleAdapter adapter(
      std::make_shared<Tied>(), [](const Tensors& inputs) { return inputs; }, mesh_of({}));
  EXPECT_EQ(adapter.parameters().size(), 1U);
}

// ---- units ----

std::vector<std::string> names_of(const std::vector<Parameter*>& parameters) {
  std::vector<std::string> names;
  for (const Parameter* parameter : parameters) names.push_back(parameter->name());
  return names;
}

std::vector<ModuleAdapter::Unit> units(const std::shared_ptr<Net>& net) {
  return {{"stem",
           {net->in.ptr(), net->norm.ptr()},
           [net](const Tensors& inputs) { return Tensors{net->norm(net->in(inputs[0])).relu()}; }},
          {"head", {net->out.ptr()}, [net](const Tensors& inputs) { return Tensors{net->out(inputs[0])}; }}};
}

TEST(Adapter, UnitsRunOneAfterAnotherWithTheSlotsOfTheModule) {
  const auto net = std::make_shared<Net>();
  net->eval();  // statistics stay as they are
  ModuleAdapter adapter(net, units(net), mesh_of({}));
  const at::Tensor x = at::ones({4, 3});
  ASSERT_EQ(adapter.blocks().size(), 2U);
  Module& stem = *adapter.blocks()[0];
  Module& head = *adapter.blocks()[1];
  EXPECT_EQ(stem.name(), "stem");
  EXPECT_THAT(names_of(stem.parameters()), ElementsAre("in.weight", "in.bias", "norm.weight", "norm.bias"));
  EXPECT_THAT(names_of(head.parameters()), ElementsAre("out.weight", "out.bias"));
  EXPECT_EQ(adapter.parameters().size(), 6U) << "each once";
  EXPECT_TRUE(adapter.parameters()[0]->is_external());
  EXPECT_TRUE(at::equal(adapter(x, {}), net->forward(x)));
  EXPECT_TRUE(at::equal(head(stem(x, {}), {}), net->forward(x)));
  int runs = 0;
  const Hook hook = head.add_hook([&](Module&, Tensors inputs, const ForwardContext& context, const Next& next) {
    ++runs;
    return next(std::move(inputs), context);
  });
  adapter(x, {});
  EXPECT_EQ(runs, 1);
}

TEST(Adapter, AParameterOfTwoUnitsIsOneSlotInBoth) {
  const auto net = std::make_shared<Net>();
  std::vector<ModuleAdapter::Unit> shared = units(net);
  shared[1].modules.push_back(net->in.ptr());
  ModuleAdapter adapter(net, shared, mesh_of({}));
  EXPECT_THAT(names_of(adapter.blocks()[1]->parameters()),
              ElementsAre("out.weight", "out.bias", "in.weight", "in.bias"));
  EXPECT_EQ(adapter.blocks()[1]->parameters()[2], adapter.blocks()[0]->parameters()[0]);
}

TEST(Adapter, ASequentialHasAUnitForEachChild) {
  torch::nn::Sequential layers(torch::nn::Linear(3, 4), torch::nn::Tanh(), torch::nn::Linear(4, 2));
  ModuleAdapter adapter(layers.ptr(), mesh_of({}));
  ASSERT_EQ(adapter.blocks().size(), 3U);
  EXPECT_THAT(names_of(adapter.blocks()[2]->parameters()), ElementsAre("2.weight", "2.bias"));
  EXPECT_TRUE(adapter.blocks()[1]->parameters().empty());
  const at::Tensor x = at::ones({4, 3});
  EXPECT_TRUE(at::equal(adapter(x, {}), layers->forward(x)));
}

TEST(Adapter, RefusesUnitsThatAreNotTheModule) {
  const auto net = std::make_shared<Net>();
  const auto refusal = [&](const std::vector<ModuleAdapter::Unit>& given) {
    return message_of<UsageError>([&] { ModuleAdapter(net, given, mesh_of({})); });
  };
  std::vector<ModuleAdapter::Unit> without = units(net);
  without.pop_back();
  EXPECT_THAT(refusal(without), HasSubstr("out.weight: is in no unit"));
  std::vector<ModuleAdapter::Unit> idle = units(net);
  idle[1].forward = nullptr;
  EXPECT_THAT(refusal(idle), HasSubstr("head: the unit has no function"));
  std::vector<ModuleAdapter::Unit> foreign = units(net);
  foreign[1].modules.push_back(torch::nn::Linear(2, 2).ptr());
  EXPECT_THAT(refusal(foreign), HasSubstr("head: has a parameter that the module does not have"));
  EXPECT_THAT(refusal({}), HasSubstr("at least one unit"));
  EXPECT_THAT(message_of<UsageError>([&] { ModuleAdapter(net, mesh_of({})); }),
              HasSubstr("is not a torch::nn::Sequential"));
}

TEST(Adapter, RefusesWhatItCannotTrain) {
  const auto run = [](const Tensors& inputs) { return inputs; };
  const auto net = std::make_shared<Net>();
  EXPECT_THAT(
      message_of<UsageError>([&] { ModuleAdapter(std::make_shared<torch::nn::Module>("empty"), run, mesh_of({})); }),
      HasSubstr("empty: has no parameters"));
  EXPECT_THROW(ModuleAdapter(nullptr, run, mesh_of({})), UsageError);
  EXPECT_THROW(ModuleAdapter(net, nullptr, mesh_of({})), UsageError);
}

}  // namespace
}  // namespace caravan::testing::adapter_test
