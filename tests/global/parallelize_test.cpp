#include "caravan/session/parallelize.h"

#include <gmock/gmock.h>
#include <memory>
#include <mutex>
#include <vector>

#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>
#include <torch/nn.h>
#include <torch/optim.h>

#include "caravan/base/error.h"
#include "caravan/session/trials.h"
#include "tests/data/support.h"
#include "tests/redistribute/denote.h"

namespace caravan::testing {
namespace {

struct BlockImpl : torch::nn::Module {
  BlockImpl() : norm(torch::nn::LayerNormOptions({8})), up(8, 12), down(12, 8) {
    register_module("norm", norm);
    register_module("up", up);
    register_module("down", down);
  }
  at::Tensor forward(const at::Tensor& x) { return x + down(torch::gelu(up(norm(x)))); }
  torch::nn::LayerNorm norm;
  torch::nn::Linear up, down;
};
TORCH_MODULE(Block);

torch::nn::Sequential stack() {
  static std::mutex one_generator;  // of all rank threads
  const std::lock_guard lock(one_generator);
  at::manual_seed(3);
  torch::nn::Sequential net(Block(), Block(), torch::nn::Linear(8, 4));
  net->to(at::kDouble);
  return net;
}

at::Tensor loss_of(const at::Tensor& output, const at::Tensor& target) { return (output - target).square().sum(); }

const std::vector<NamedLayout> kMegatron{{"*.up.*", {{"tp", Shard{0}}}}, {"*.down.weight", {{"tp", Shard{1}}}}};

void check(const Axes& axes, const std::vector<Technique>& techniques, const ParallelOptions& options = {}) {
  const at::Tensor x = random_tensor({12, 8}, 1);
  const at::Tensor y = random_tensor({12, 4}, 2);
  on_mesh(axes, [&](const Mesh& mesh) {
    const torch::nn::Sequential net = stack();
    const ModuleProof proof = prove(net, mesh, techniques, {x, y, loss_of}, options);
    EXPECT_TRUE(proof.holds()) << proof.to_string();
    EXPECT_EQ(proof.num_parameters, 14);
  });
}

TEST(ParallelizeByLayouts, EqualsOneProcess) {
  check({{"dp", 1}, {"tp", 2}}, {tensor(kMegatron)});
  check({{"dp", 1}, {"tp", 3}}, {tensor(kMegatron)});
  check({{"dp", 2}, {"tp", 2}}, {tensor(kMegatron)});
  check({{"dp", 2}, {"tp", 2}}, {tensor(kMegatron), zero({.stage = 1})});
  check({{"dp", 2}, {"tp", 2}}, {tensor(kMegatron), fsdp()}, {.micro_batches = 2});
  check({{"dp", 2}, {"tp", 2}}, {tensor(kMegatron), fsdp(), recompute()});
}

TEST(ParallelizeByLayouts, NamesDoTheSame) {
  const std::vector<DimNames> names{{"*.up.weight", "ff embed"}, {"*.up.bias", "ff"}, {"*.down.weight", "embed ff"}};
  check({{"dp", 1}, {"tp", 2}}, {tensor(names, {"ff -> tp"})});
  check({{"pp", 2}, {"dp", 1}, {"tp", 2}}, {tensor(names, {"ff -> tp"}), pipeline({.micro_batches = 2})});
}

/// Parameters are stored by their global names: what one layout has saved, another reads.
TEST(ParallelizeByLayouts, CheckpointsAreReadUnderOtherLayouts) {
  const TemporaryFolder folder;
  const at::Tensor x = random_tensor({12, 8}, 1);
  const at::Tensor y = random_tensor({12, 4}, 2);
  const auto step = [&](ParallelModel& model, const Mesh& mesh, torch::optim::Optimizer& optimizer) {
    const double loss = model.step(rows_of(x, mesh), rows_of(y, mesh), loss_of);
    optimizer.step();
    return loss;
  };
  const std::vector<Technique> split{tensor(kMegatron), fsdp()};
  double next = 0;
  on_mesh({{"dp", 2}, {"tp", 2}}, [&](const Mesh& mesh) {
    ParallelModel model(stack(), mesh, split);
    torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
    model.attach(optimizer);
    model.load(folder / "run");
    step(model, mesh, optimizer);
    model.save(folder / "run", {.step = 1});
    const double loss = step(model, mesh, optimizer);
    if (mesh.rank() == 0) next = loss;
  });
  const auto resume = [&](const Axes& axes, const std::vector<Technique>& techniques) {
    on_mesh(axes, [&](const Mesh& mesh) {
      ParallelModel model(stack(), mesh, techniques);
      torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
      model.attach(optimizer);
      EXPECT_EQ(model.load(folder / "run").step, 1);
      const double loss = step(model, mesh, optimizer);
      EXPECT_NEAR(loss, next, 1e-10 * next);
    });
  };
  resume({{"dp", 1}}, {});
  resume({{"dp", 3}}, {zero({.stage = 1})});
  resume({{"dp", 1}, {"tp", 3}}, {tensor(kMegatron)});
}

/// The forward that is repeated for backward drops the same elements. Sums of the same numbers in the same order: 0.
TEST(ParallelizeByLayouts, RecomputedDropoutIsTheSame) {
  const at::Tensor x = random_tensor({12, 8}, 1);
  const at::Tensor y = random_tensor({12, 8}, 2);
  on_mesh({{"dp", 2}, {"tp", 2}}, [&](const Mesh& mesh) {
    const auto parameters_after = [&](const std::vector<Technique>& techniques, uint64_t seed) {
      torch::nn::Sequential net;
      {
        static std::mutex one_generator;
        const std::lock_guard lock(one_generator);
        at::manual_seed(3);
        net = torch::nn::Sequential(Block(), torch::nn::Dropout(0.5), Block(), torch::nn::Dropout(0.5));
      }
      net->to(at::kDouble);
      ParallelModel model(net, mesh, techniques, {.micro_batches = 2, .seed = seed});
      torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(0.01));
      model.attach(optimizer);
      for (int step = 0; step < 2; ++step) {
        model.step(rows_of(x, mesh), rows_of(y, mesh), loss_of);
        optimizer.step();
      }
      std::vector<at::Tensor> all;
      for (const at::Tensor& each : model.parameters()) all.push_back(each.detach().flatten());
      return at::cat(all);
    };
    const at::Tensor kept = parameters_after({tensor(kMegatron)}, 5);
    EXPECT_TRUE(at::equal(kept, parameters_after({tensor(kMegatron), recompute()}, 5)));
    EXPECT_FALSE(at::equal(kept, parameters_after({tensor(kMegatron), recompute()}, 6)));
  });
}

TEST(ParallelizeByLayouts, AFrozenParameterStaysAsItIs) {
  const at::Tensor x = random_tensor({12, 8}, 1);
  const at::Tensor y = random_tensor({12, 4}, 2);
  on_mesh({{"dp", 1}, {"tp", 2}}, [&](const Mesh& mesh) {
    const torch::nn::Sequential net = stack();
    for (const auto& each : net->named_parameters()) {
      if (each.key().find("up.bias") != std::string::npos) each.value().set_requires_grad(false);
    }
    const ModuleProof proof = prove(net, mesh, {tensor(kMegatron)}, {x, y, loss_of});
    EXPECT_TRUE(proof.holds()) << proof.to_string();
    ParallelModel model(net, mesh, {tensor(kMegatron), fsdp()});
    torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(0.01));
    model.attach(optimizer);
    model.step(rows_of(x, mesh), rows_of(y, mesh), loss_of);
    optimizer.step();
  });
}

TEST(ParallelizeByLayouts, RefusesWhatDoesNotFit) {
  on_mesh({{"dp", 2}, {"tp", 2}}, [](const Mesh& mesh) {
    const auto message = [&](const std::vector<Technique>& techniques) {
      return message_of<UsageError>([&] { ParallelModel(stack(), mesh, techniques); });
    };
    using ::testing::HasSubstr;
    EXPECT_THAT(message({tensor({{"*.upp.weight", {{"tp", Shard{0}}}}})}), HasSubstr("did you mean"));
    EXPECT_THAT(message({tensor({{"*.up.weight", {{"dp", Shard{0}}}}})}), HasSubstr("leave it to fsdp()"));
    EXPECT_THAT(message({tensor({{"*.up.weight", {{"tp", Shard{2}}}}})}), HasSubstr("shard a dim from 0 to 1"));
    EXPECT_THAT(message({tensor({{"*.up.weight", {{"experts", Shard{0}}}}})}), HasSubstr("experts"));
    EXPECT_THAT(message({tensor(kMegatron), tensor(kMegatron)}), HasSubstr("chosen twice"));
  });
}

}  // namespace
}  // namespace caravan::testing
