/// A user's module in stages: several tensors at a boundary, integers and skips among them, shapes that change between
/// micro-batches, and what is refused.

#include <atomic>
#include <chrono>
#include <functional>
#include <gmock/gmock.h>
#include <thread>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include "caravan/base/error.h"
#include "caravan/engine/stages/stage_runner.h"
#include "caravan/module/adapter.h"
#include "caravan/techniques/pipeline/pipeline.h"
#include "tests/redistribute/denote.h"
#include "tests/techniques/together/technique.h"

namespace caravan::testing::pipeline_module_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// {x, ..} -> {h, places, x, ..} -> {h, places, x, ..} -> {loss}: `places` are integers without gradient, x has none.
std::vector<ModuleAdapter::Unit> units_of(const torch::nn::Sequential& net) {
  const auto layer = [net](size_t i) { return net->ptr<torch::nn::LinearImpl>(i); };
  const auto first = [=](Tensors in) {
    const at::Tensor places = at::arange(in[0].size(0)).remainder(3);
    in.insert(in.begin(), {layer(0)->forward(in[0]).tanh(), places});
    return in;
  };
  const auto middle = [=](Tensors in) {
    in[0] = layer(1)->forward(in[0]).tanh() * (in[1] + 1).unsqueeze(1);
    return in;
  };
  const auto last = [=](const Tensors& in) -> Tensors {
    return {(layer(2)->forward(at::cat({in[0], in[2]}, 1)) - in[3]).square().sum()};
  };
  return {{"first", {layer(0)}, first}, {"middle", {layer(1)}, middle}, {"last", {layer(2)}, last}};
}

struct Found {
  double loss = 0;
  std::map<std::string, at::Tensor> gradients;
};

/// `rows[m]`: of micro-batch m.
Found run(int ranks, const std::vector<int64_t>& rows, const std::string& schedule, bool static_graph, bool recompute) {
  std::mutex mutex;
  Found found;
  on_mesh({{"pp", ranks}}, [&](const Mesh& given) {
    Mesh mesh = given;
    torch::nn::Sequential net(torch::nn::Linear(2, 5), torch::nn::Linear(5, 5), torch::nn::Linear(7, 1));
    net->to(at::kDouble);
    {
      const at::NoGradGuard no_grad;
      uint64_t seed = 0;
      for (at::Tensor& weight : net->parameters()) weight.copy_(random_tensor(weight.sizes(), ++seed));
    }
    ModuleAdapter model(net.ptr(), units_of(net), mesh);
    Strategy strategy = whole_model(model, mesh);
    add_pipeline(strategy, mesh,
                 {.choice = pipeline_of(schedule), .recompute = recompute, .has_static_shapes = static_graph});
    Engine engine(model, mesh, strategy);
    StageRunner runner(engine);
    const double loss = runner.run_step(static_cast<int>(rows.size()), [&](int m) {
      const auto seed = static_cast<uint64_t>(100 + m);
      const int64_t count = rows[static_cast<size_t>(m)];
      return MicroBatch{random_tensor({count, 2}, seed), random_tensor({count, 1}, seed + 50)};
    });
    const std::lock_guard lock(mutex);
    found.loss += loss;
    for (const Parameter* parameter : model.parameters()) {
      const at::Tensor gradient = parameter->sharded().grad();
      if (gradient.defined() && gradient.numel() > 0) found.gradients[parameter->name()] = gradient.clone();
    }
  });
  return found;
}

void expect_equal(const Found& got, const Found& want) {
  EXPECT_NEAR(got.loss, want.loss, 1e-12 * std::abs(want.loss));
  ASSERT_EQ(got.gradients.size(), want.gradients.size());
  for (const auto& [name, gradient] : want.gradients)
    EXPECT_TRUE(is_close(got.gradients.at(name), gradient, 1e-12)) << name;
}

TEST(OwnModuleInStages, MatchesOneProcess) {
  const std::vector<int64_t> rows{3, 3, 3, 3};
  for (const char* schedule : {"1f1b", "gpipe", "zb-h1"}) {
    for (const bool recompute : {false, true}) {
      SCOPED_TRACE(std::string(schedule) + (recompute ? ", recompute" : ""));
      expect_equal(run(3, rows, schedule, true, recompute), run(1, rows, "1f1b", true, false));
    }
  }
}

TEST(OwnModuleInStages, MayHaveOtherShapesInEachMicroBatch) {
  const std::vector<int64_t> rows{3, 5, 1, 4};
  expect_equal(run(3, rows, "1f1b", /*static_graph=*/false, false), run(1, rows, "1f1b", false, false));
  expect_equal(run(2, rows, "gpipe", /*static_graph=*/false, true), run(1, rows, "1f1b", false, false));
}

TEST(OwnModuleInStages, AShapeThatChangesIsNamed) {
  needs({"1f1b"});
  try {
    run(3, {3, 3, 5, 3}, "1f1b", /*static_graph=*/true, false);
    FAIL() << "no error";
  } catch (const std::exception& error) {
    EXPECT_THAT(error.what(), HasSubstr("input of stage 1"));
    EXPECT_THAT(error.what(), HasSubstr("[5, 5] in micro-batch 2, in the first it was Double [3, 5]"));
  }
}

/// What is larger than the staging buffers between two ranks, and `tensors` of them.
std::vector<ModuleAdapter::Unit> wide_units(const torch::nn::Sequential& net, int tensors,
                                            const std::function<void()>& on_last) {
  const auto layer = [net](size_t i) { return net->ptr<torch::nn::LinearImpl>(i); };
  const auto first = [=](const Tensors& in) -> Tensors {
    return Tensors(static_cast<size_t>(tensors), layer(0)->forward(in[0]));
  };
  const auto last = [=](const Tensors& in) -> Tensors {
    on_last();
    return {layer(1)->forward(in[0]).sum()};
  };
  return {{"first", {layer(0)}, first}, {"last", {layer(1)}, last}};
}

void on_wide_stages(int tensors, const std::function<void()>& on_last, const std::function<void(Engine&)>& body) {
  on_mesh({{"pp", 2}}, [&](const Mesh& given) {
    Mesh mesh = given;
    torch::nn::Sequential net(torch::nn::Linear(2, 40'000), torch::nn::Linear(40'000, 1));
    ModuleAdapter model(net.ptr(), wide_units(net, tensors, on_last), mesh);
    Strategy strategy = whole_model(model, mesh);
    add_pipeline(strategy, mesh, {});
    Engine engine(model, mesh, strategy);
    body(engine);
  });
}

/// The first rank computes the second micro-batch, and makes no progress, until the other has begun with the first.
TEST(OwnModuleInStages, AMessageArrivesWhileItsSenderComputes) {
  std::atomic<bool> has_begun = false;
  on_wide_stages(
      1, [&] { has_begun = true; },
      [&](Engine& engine) {
        StageRunner(engine).run_step(2, [&](int m) {
          const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
          const bool waits = m == 1 && engine.mesh().rank() == 0;
          while (waits && !has_begun && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
          EXPECT_TRUE(!waits || has_begun);
          return MicroBatch{at::ones({2, 2}), at::ones({2, 1})};
        });
      });
}

TEST(OwnModuleInStages, MoreTensorsThanAHeaderHoldsAreRefused) {
  const auto evaluate = [](Engine& engine) {
    const EvaluationScope scope(engine);
    StageRunner(engine).evaluate({at::ones({2, 2}), at::ones({2, 1})});
  };
  EXPECT_NO_THROW(on_wide_stages(
      8, [] {}, evaluate));
  EXPECT_THAT(message_of<ShapeError>([&] {
                on_wide_stages(
                    9, [] {}, evaluate);
              }),
              AllOf(HasSubstr("9 tensors"), HasSubstr("at most 8")));
}

TEST(OwnModuleInStages, MoreStagesThanUnitsAreRefused) {
  EXPECT_THROW(run(4, {3, 3}, first_of("pipeline").name, true, false), UsageError);
}

}  // namespace
}  // namespace caravan::testing::pipeline_module_test
