#include <gmock/gmock.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/comm/record.h"
#include "caravan/models/model.h"
#include "caravan/optim/loss_scale.h"
#include "caravan/step/train_step.h"
#include "caravan/techniques/data/ddp.h"
#include "caravan/train/evaluation/evaluate.h"
#include "caravan/train/folder/run_state.h"
#include "tests/train/tiny_run.h"

namespace caravan::testing::step_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// Runs `body` with a TrainStep of the tiny GPT-2 on `ranks` thread ranks.
void on_steps(int ranks, const TinyRuns& runs,
              const std::function<void(TrainStep&, RunState&, const TrainBatch&, const Mesh&)>& body) {
  const Recipe recipe = runs.recipe(Architecture::gpt2(), "none");
  run_thread_ranks(ranks,
                   [&](const std::shared_ptr<Communicator>& world) {
                     const Mesh mesh = Mesh::create(world, {{"dp", ranks}});
                     const Dataset data = open_dataset(recipe.data, runs.folders());
                     RunState state(recipe, data.tokenizer, mesh);
                     const TrainWindows windows = data.train_windows(8, 3);
                     const TrainBatch batch = make_rank_batch(state.engine(), windows, 0, ranks * 4);
                     TrainStep step(state.engine(), state.optimizer(),
                                    {.seed = 3, .num_micro_batches = 2, .clip_norm = 1});
                     body(step, state, batch, mesh);
                   },
                   {.timeout = std::chrono::seconds(20)});
}

TEST(TrainStep, BadNumbersOfOneRankAreNamedOnEveryRankAndChangeNothing) {
  const TinyRuns runs;
  for (const int bad : {0, 1, 2}) {
    std::vector<std::string> messages(3);
    on_steps(3, runs, [&](TrainStep& step, RunState& state, const TrainBatch& batch, const Mesh& mesh) {
      step.run(batch, 0, 0.01);
      const at::NoGradGuard no_grad;
      if (mesh.rank() == bad) state.model().find("blocks.1").parameters().front()->sharded().view({-1})[0] = NAN;
      const at::Tensor before = state.engine().state().values.to_tensor();
      messages[mesh.rank()] = message_of<NumericsError>([&] {
        const at::AutoGradMode grad(true);
        step.run(batch, 6, 0.01);
      });
      EXPECT_TRUE(at::equal(state.engine().state().values.to_tensor().nan_to_num(-5), before.nan_to_num(-5)));
      EXPECT_EQ(state.optimizer().num_steps(), 1);
    });
    for (const std::string& message : messages) {
      EXPECT_THAT(message, AllOf(HasSubstr("gradient of embedding"), HasSubstr("at step 7"), HasSubstr("nan"),
                                 HasSubstr("first on rank " + std::to_string(bad))));
    }
  }
}

/// The gradient of "loud" is `factor`.
class Loud final : public Module {
 public:
  double factor = 1;

 protected:
  Tensors forward(Tensors, const ForwardContext&) override {
    return {quiet_.compute().sum() + (loud_.compute() * factor).sum()};
  }

 private:
  Parameter& quiet_ = register_parameter("quiet", {.shape = {2}});
  Parameter& loud_ = register_parameter("loud", {.shape = {3}});
};

/// The error that a step of Loud throws on each of two ranks. `scale`: of fp16, fixed; 0: not in fp16.
std::vector<std::string> refusals(double factor_of_0, double factor_of_1, double scale = 0) {
  std::vector<std::string> messages(2);
  run_thread_ranks(2,
                   [&](const std::shared_ptr<Communicator>& world) {
                     const Mesh mesh = Mesh::create(world, {{"dp", 2}});
                     Loud model;
                     model.factor = world->rank() == 0 ? factor_of_0 : factor_of_1;
                     Ddp ddp(model, mesh);
                     Sgd optimizer(ddp.state());
                     LossScale fixed(std::max(scale, 1.0));
                     TrainStep step(ddp, optimizer, {.loss_scale = scale > 0 ? &fixed : nullptr});
                     const at::Tensor ids = at::zeros({1, 4}, at::kLong);
                     messages[world->rank()] = message_of<NumericsError>(
                         [&] { step.run({.ids = ids, .labels = ids, .global_rows = 2, .num_targets = 8}, 4, 0.1); });
                   },
                   {.timeout = std::chrono::seconds(20)});
  EXPECT_EQ(messages[0], messages[1]);
  return messages;
}

TEST(TrainStep, NamesTheFirstBadParameterOrThatOnlyTheSumIsBad) {
  EXPECT_THAT(refusals(1, INFINITY)[0],
              AllOf(HasSubstr("gradient of loud: is not finite at step 5"), HasSubstr("first on rank 1")));
  EXPECT_THAT(refusals(-NAN, -NAN)[0],
              AllOf(HasSubstr("gradient of loud"), HasSubstr("first on rank 0"), HasSubstr("gradient norm nan)")));
  // Each summand fits fp32, but the sum overflows.
  EXPECT_THAT(refusals(2e38, 2e38)[0], AllOf(HasSubstr("gradient of loud"), HasSubstr("only in the sum over ranks")));
  // The squares in the norm overflow.
  EXPECT_THAT(refusals(1e30, 1)[0],
              AllOf(HasSubstr("gradient norm: is not finite"), HasSubstr("(loss 0.0000, gradient norm inf)")));
  EXPECT_THAT(refusals(1, INFINITY)[0], HasSubstr("do: lower optimizer.lr, "));
}

/// The scale is too large only if the loss, which is not scaled, is finite.
TEST(TrainStep, NamesTheWayOutOfFp16) {
  EXPECT_THAT(refusals(1e30, 1, 1024)[0], HasSubstr("do: lower precision.loss_scale"));
  EXPECT_THAT(refusals(1e30, 1, 1)[0], HasSubstr("do: use precision.compute = \"bf16\""));
  EXPECT_THAT(refusals(INFINITY, 1, 1024)[0], HasSubstr("do: use precision.compute = \"bf16\""));
}

TEST(TrainStep, RowsThatDoNotSplitAreRefused) {
  const TinyRuns runs;
  on_steps(2, runs, [&](TrainStep& step, RunState&, const TrainBatch& batch, const Mesh&) {
    TrainBatch odd = batch;
    odd.ids = batch.ids.narrow(0, 0, 3);
    odd.labels = batch.labels.narrow(0, 0, 3);
    EXPECT_THAT(message_of<ShapeError>([&] { step.run(odd, 0, 0.01); }), HasSubstr("3 rows do not split into 2"));
    EXPECT_NO_THROW(step.run(batch, 0, 0.01)) << "nothing has begun";
  });
}

TEST(TrainStep, AStopRequestIsAgreedOn) {
  const TinyRuns runs;
  on_steps(3, runs, [&](TrainStep& step, RunState&, const TrainBatch& batch, const Mesh& mesh) {
    EXPECT_FALSE(step.run(batch, 0, 0.01, false).stop);
    EXPECT_TRUE(step.run(batch, 1, 0.01, mesh.rank() == 1).stop);
    EXPECT_FALSE(step.run(batch, 2, 0.01, false).stop);
  });
}

/// In the whole loop, a learning rate that makes the weights overflow ends the run on every rank; checkpoints stay.
TEST(Train, NonFiniteNumbersLeaveTheLastCheckpoint) {
  const TinyRuns runs;
  const Recipe recipe = runs.recipe(Architecture::gpt2(), "run",
                                    {"optimizer.kind=sgd", "optimizer.lr=1e6", "optimizer.clip_norm=0",
                                     "optimizer.warmup_steps=0", "checkpoint.every=1", "checkpoint.keep=0"});
  std::vector<std::string> messages(2);
  run_thread_ranks(2,
                   [&](const std::shared_ptr<Communicator>& world) {
                     messages[world->rank()] = message_of<NumericsError>(
                         [&] { train({.recipe = recipe, .folders = runs.folders()}, world); });
                   },
                   {.timeout = std::chrono::seconds(20)});
  const size_t done = losses(runs / "run").size();
  EXPECT_THAT(messages[0], AllOf(HasSubstr("at step " + std::to_string(done + 1)), HasSubstr("rank 0"),
                                 HasSubstr("the last checkpoint is untouched")));
  EXPECT_EQ(messages[1], messages[0]);
  ASSERT_GE(done, 1U);
  EXPECT_EQ(list_checkpoints(runs / "run").size(), done);
  for (const auto& [name, tensor] : checkpoint_tensors(runs / "run")) {
    EXPECT_TRUE(at::isfinite(tensor).all().item<bool>()) << name;
  }
}

/// Every token of the last tenth except the first is counted once, however the windows are distributed.
TEST(Evaluation, IsTheSameOnAnyRanks) {
  const TinyRuns runs;
  const Recipe recipe = runs.recipe(Architecture::llama(), "none");
  const Dataset data = open_dataset(recipe.data, runs.folders());
  const ValidationWindows windows = data.validation_windows(8);
  const Mesh alone = Mesh::create(make_record_world(0, 1), {{"dp", 1}});
  RunState one(recipe, data.tokenizer, alone);
  double nats = 0;
  const at::NoGradGuard no_grad;
  for (int64_t begin = 0; begin + 1 < data.validation.tokens.size(); begin += 8) {
    const int64_t count = std::min<int64_t>(8, data.validation.tokens.size() - 1 - begin);
    at::Tensor ids = at::empty({1, count + 1}, at::kLong);
    data.validation.tokens.read(begin, {ids.data_ptr<int64_t>(), static_cast<size_t>(count + 1)});
    const at::Tensor logits = one.model().run({ids.narrow(1, 0, count)}, {.phase = Phase::evaluate}).front();
    nats -= logits.to(at::kDouble).log_softmax(-1).gather(2, ids.narrow(1, 1, count).unsqueeze(2)).sum().item<double>();
  }
  const double loss = nats / static_cast<double>(data.validation.tokens.size() - 1);
  for (const int ranks : {1, 2, 3, 4}) {
    for (const int64_t rows : {1, 5}) {
      std::vector<double> got(ranks);
      run_thread_ranks(ranks,
                       [&](const std::shared_ptr<Communicator>& world) {
                         const Mesh mesh = Mesh::create(world, {{"dp", ranks}});
                         RunState state(recipe, data.tokenizer, mesh);
                         const Evaluation result = *evaluate(state.engine(), windows, {.rows = rows});
                         got[world->rank()] = result.loss;
                         EXPECT_NEAR(result.bits_per_byte * std::log(2.0) *
                                         static_cast<double>(data.validation.tokens.info().text_bytes),
                                     result.loss * static_cast<double>(windows.num_targets()), 1e-6);
                       },
                       {.timeout = std::chrono::seconds(20)});
      EXPECT_NEAR(got[0] / loss, 1, 1e-6) << ranks;  // fp32 logits
      for (const double other : got) EXPECT_EQ(other, got[0]);
    }
  }
}

/// The effect of recipe settings that change no number.
TEST(RunStateTest, OverlapAndPrefetchComeFromTheRecipe) {
  const TinyRuns runs;
  for (const bool overlaps : {true, false}) {
    const std::string prefetch = overlaps ? "data_parallel.prefetch=2" : "data_parallel.prefetch=0";
    const Recipe recipe = runs.recipe(Architecture::gpt2(), "none",
                                      {overlaps ? "comm.overlap=true" : "comm.overlap=false",
                                       "data_parallel.technique=zero3", prefetch, "mesh.tp=2", "mesh.dp=2"});
    run_thread_ranks(4, [&](const std::shared_ptr<Communicator>& world) {
      const Mesh mesh = Mesh::create(world, {{"dp", 2}, {"tp", 2}});
      const Dataset data = open_dataset(recipe.data, runs.folders());
      RunState state(recipe, data.tokenizer, mesh);
      EXPECT_EQ(mesh.deferred().overlaps(), overlaps);
      EXPECT_EQ(state.engine().strategy().gathers.prefetch, overlaps ? 2 : 0);
    });
  }
}

}  // namespace
}  // namespace caravan::testing::step_test
