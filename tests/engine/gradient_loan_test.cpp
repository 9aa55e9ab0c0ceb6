/// Gradients whose memory is lent to activations have the same bits, and last from the end of a step to the next.

#include "caravan/engine/gradients/gradient_loan.h"

#include <functional>
#include <gmock/gmock.h>
#include <stdexcept>

#include <gtest/gtest.h>

#include "caravan/base/memory/huge_pages.h"
#include "caravan/base/tensor_loan.h"
#include "caravan/base/trace/path_log.h"
#include "caravan/engine/engine.h"
#include "caravan/optim/optimizer.h"
#include "tests/engine/parameters.h"

namespace caravan::testing::gradient_loan_test {
namespace {

using ::testing::Contains;
using ::testing::Key;
using ::testing::Not;

constexpr auto kLent = "gradients for lending";

/// Of the steps of one run.
struct Found {
  std::vector<at::Tensor> gradients;  ///< flat, after each step
  at::Tensor values;                  ///< after the last one
  PathCounts paths;
};

/// A chain whose gradients have 16 MiB in fp32, and whose activations have 8 MiB each.
struct LendingRun {
  LendingRun(const Mesh& mesh, bool lends, const std::function<void(Strategy&)>& change) {
    Strategy strategy = whole_model(model, mesh);
    strategy.name = "test";
    add_data_axis(strategy, mesh, "dp");
    strategy.lends_gradients = lends;
    if (change) change(strategy);
    engine = std::make_unique<Engine>(model, mesh, strategy, Engine::Options{.seed = 3});
    optimizer = std::make_unique<AdamW>(engine->state());
  }

  at::Tensor forward(int micro_batch, const ForwardContext& context = {}) {
    const at::Tensor x = at::arange(1 << 21, at::kFloat).remainder_(7 + micro_batch).mul_(1e-6);
    return model.run({x}, context)[0].sum();
  }
  void step(int num_micro_batches = 1) {
    engine->begin_step(num_micro_batches);
    for (int m = 0; m < num_micro_batches; ++m) forward(m).backward();
    engine->finish_step();
  }

  Chain model{{{{"w", {1000, 1049}}},  // not whole pages
               {{"w", {1024, 1023}}, {"b", {3}, false}},
               {{"w", {1024, 1024}}},
               {{"w", {1024, 1024}}}}};
  std::unique_ptr<Engine> engine;
  std::unique_ptr<AdamW> optimizer;
};

struct Case {
  std::string name;
  std::function<void(Strategy&)> change{};
  std::function<void(LendingRun&)> step = [](LendingRun& run) { run.step(); };
};

Found run_case(const Case& of, bool lends) {
  Found found;
  on_mesh({{"dp", 1}}, [&](const Mesh& mesh) {
    PathLog log;
    const PathScope scope(&log);
    LendingRun run(mesh, lends, of.change);
    for (int step = 0; step < 3; ++step) {
      of.step(run);
      found.gradients.push_back(run.engine->state().gradients.to_tensor());
      run.optimizer->step(1e-3);
    }
    found.values = run.engine->state().values.to_tensor();
    found.paths = log.counts();
  });
  return found;
}

std::vector<Case> cases() {
  const auto unused = [](Strategy& strategy) { strategy.find_unused_parameters = true; };
  return {
      {"a step"},
      {"micro-batches", {}, [](LendingRun& run) { run.step(3); }},
      {"gradients in bf16", [](Strategy& strategy) { strategy.gradient_dtype = at::kBFloat16; }},
      {"layers in bf16", [](Strategy& strategy) { strategy.compute_dtype = at::kBFloat16; }},
      {"an unused unit", unused,
       [](LendingRun& run) {
         run.model.unit(1).reads = false;
         run.step();
       }},
      {"an evaluation in a step and after it",
       {},
       [](LendingRun& run) {
         run.engine->begin_step();
         const at::NoGradGuard no_grad;
         run.forward(4, {.phase = Phase::evaluate});
         {
           const at::AutoGradMode grad(true);
           run.forward(0).backward();
         }
         run.engine->finish_step();
         run.forward(5, {.phase = Phase::evaluate});
       }},
      {"a rank that joins",
       {},
       [](LendingRun& run) {
         ASSERT_TRUE(run.engine->begin_join_step(/*has_batch=*/true));
         run.forward(0).backward();
         run.engine->finish_step();
         ASSERT_FALSE(run.engine->begin_join_step(/*has_batch=*/false));
       }},
      {"a step that fails before",
       {},
       [](LendingRun& run) {
         run.engine->begin_step();
         run.model.unit(2).in_forward = [] { throw std::runtime_error("in forward"); };
         EXPECT_THROW(run.forward(0), std::runtime_error);
         run.model.unit(2).in_forward = {};
         run.step();
       }},
  };
}

TEST(GradientLoan, ChangesNoBit) {
  for (const Case& of : cases()) {
    SCOPED_TRACE(of.name);
    const Found with = run_case(of, true), without = run_case(of, false);
    EXPECT_THAT(with.paths, Contains(Key(kLent)));
    EXPECT_THAT(without.paths, Not(Contains(Key(kLent))));
    for (size_t step = 0; step < with.gradients.size(); ++step) {
      EXPECT_TRUE(same_bits(with.gradients[step], without.gradients[step])) << "step " << step;
    }
    EXPECT_TRUE(same_bits(with.values, without.values)) << "gaps too";
  }
}

/// The forward of the first step takes pages of the gradients, and its end gives them back.
TEST(GradientLoan, IsOutInTheForward) {
  on_mesh({{"dp", 1}}, [](const Mesh& mesh) {
    LendingRun run(mesh, true, {});
    const at::Tensor all = run.engine->state().gradients.narrow(0, run.engine->state().layout.trained_count());
    all.fill_(5);
    const auto num_kept = [&] { return all.eq(5).sum().item<int64_t>(); };
    EXPECT_EQ(num_kept(), all.numel());
    run.engine->begin_step();
    const at::Tensor loss = run.forward(0);
    const int64_t kept = num_kept();
    if (can_move_pages()) {
      EXPECT_LT(kept, all.numel() / 2);
    }
    loss.backward();
    run.engine->finish_step();
    const at::Tensor gradients = all.clone();
    EXPECT_EQ(gradients.eq(5).sum().item<int64_t>(), 0);
    run.forward(1, {.phase = Phase::evaluate});
    EXPECT_TRUE(same_bits(all, gradients)) << "until the next step begins";
    for (const Parameter* parameter : run.model.parameters()) {
      EXPECT_TRUE(same_bits(parameter->sharded().grad(), run.engine->state().layout.view(gradients, *parameter)));
    }
  });
}

TEST(GradientLoan, IsOfOneRankAlone) {
  on_mesh({{"dp", 2}}, [](const Mesh& mesh) {
    LendingRun run(mesh, true, {});
    EXPECT_FALSE(run.engine->state().lends_gradients) << "peers read the gradients in place";
    run.step();
  });
  const at::Tensor none = at::from_blob(nullptr, {0}, at::kFloat);
  EXPECT_EQ(loan_of(none).lend(), 0U);
  std::vector<float> memory(8 << 20);
  const at::Tensor other = at::from_blob(memory.data(), {8 << 20}, at::kFloat);
  EXPECT_EQ(loan_of(other).lend(), 0U) << "memory of somebody else";
  EXPECT_EQ(loan_of(at::empty({8 << 20}, at::TensorOptions(at::kMeta))).lend(), 0U) << "held by no scope";
}

}  // namespace
}  // namespace caravan::testing::gradient_loan_test
