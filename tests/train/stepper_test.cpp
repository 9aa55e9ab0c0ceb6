/// The ways of stepping behind one interface: boundaries, the values of a log line, and a stepper that is abandoned in
/// the middle of a step and made anew.

#include "caravan/step/stepper.h"

#include <gmock/gmock.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/train/run_setup.h"
#include "tests/train/tiny_run.h"

namespace caravan::testing::stepper_test {
namespace {

using Keys = std::vector<std::string>;

const Keys kSync{"data_parallel.technique=zero3"};
const Keys kStages{"data_parallel.technique=ddp", "mesh.pp=2",
                   "pipeline.schedule=pipedream", "pipeline.drain=3",
                   "optimizer.clip_norm=0",       "model.tie_embeddings=false"};
const Keys kServers{"data_parallel.technique=param_server", "data_parallel.mode=bounded", "data_parallel.staleness=2",
                    "data_parallel.drain=3"};

/// What a rank has of a run between its steps.
struct Rank {
  RunState& state;
  Stepper& stepper;
  const TrainWindows& windows;
  Stepper::BatchOf batch_of;
  Communicator& world;

  StepReport advance(int64_t end, bool stops = false) {
    const StepReport report = stepper.advance(end, batch_of, [&] { return stops; });
    state.step = stepper.step();
    state.clocks = stepper.clocks();
    return report;
  }
};

class Steppers : public ::testing::Test {
 protected:
  /// Runs on two thread ranks; continues from the checkpoint of `from`, if it has one.
  void on_ranks(const Keys& keys, const std::string& from, const std::function<void(Rank&)>& body) const {
    const Recipe recipe = runs_.recipe(Architecture::gpt2(), "run", keys);
    const Dataset data = open_dataset(recipe.data, runs_.folders());
    const TrainWindows windows = data.train_windows(recipe.model.context, recipe.train.seed);
    run_thread_ranks(2,
                     [&](const std::shared_ptr<Communicator>& world) {
                       const Mesh mesh = Mesh::create(world, mesh_axes(recipe, 2));
                       RunState state(recipe, data.tokenizer, mesh);
                       const auto stepper = make_stepper(state, recipe, plan_batch(recipe, 2).accumulation);
                       if (stepper->state() != nullptr) state.add(*stepper->state());
                       if (!from.empty()) state.load(find_checkpoint(runs_ / from), windows);
                       stepper->start_at(state.step, state.clocks);
                       const auto batch_of = [&](int64_t step) {
                         return make_rank_batch(state.engine(), windows, step, recipe.train.global_batch);
                       };
                       Rank rank{state, *stepper, windows, batch_of, *world};
                       body(rank);
                     },
                     {.timeout = std::chrono::seconds(20)});
  }

  const TinyRuns runs_;
};

TEST_F(Steppers, StopAtBoundaries) {
  on_ranks(kSync, "", [](Rank& rank) {
    EXPECT_EQ(rank.stepper.end_of_begun(10), 1);
    const StepReport report = rank.advance(10);
    EXPECT_EQ(rank.state.step, 1);
    EXPECT_EQ(report.rows, 36);
    EXPECT_EQ(rank.advance(10).total_rows, 72);
    EXPECT_TRUE(rank.advance(10, rank.world.rank() == 1).stop);
    EXPECT_TRUE(rank.state.clocks.empty());
  });
  on_ranks(kStages, "", [](Rank& rank) {
    EXPECT_EQ(rank.advance(10).own_steps, 3);
    EXPECT_EQ(rank.stepper.end_of_begun(4), 4);
    const StepReport report = rank.advance(4);
    EXPECT_EQ(rank.state.step, 4);
    EXPECT_EQ(report.rows, 36);
    EXPECT_EQ(report.total_rows, 4 * 36);
    EXPECT_TRUE(rank.advance(10, rank.world.rank() == 1).stop);
    EXPECT_EQ(rank.state.step, 6) << "windows end at multiples of their length";
    EXPECT_TRUE(rank.state.clocks.empty());
  });
  on_ranks(kServers, "", [](Rank& rank) {
    EXPECT_EQ(rank.stepper.end_of_begun(10), 3 + 2);
    const StepReport report = rank.advance(10);
    EXPECT_EQ(rank.state.step, 3);
    ASSERT_TRUE(report.drain);
    EXPECT_EQ(rank.state.clocks, report.drain->clocks);
    EXPECT_EQ(report.total_rows, report.drain->pushes() * 18);
    EXPECT_EQ(report.own_steps, rank.state.clocks[static_cast<size_t>(rank.world.rank())]);
    const int64_t pushes = report.drain->pushes();
    EXPECT_TRUE(rank.advance(10, /*stops=*/true).stop);
    EXPECT_EQ(rank.stepper.step(), 3) << "a stop that is requested before the first step";
    EXPECT_EQ(rank.state.optimizer().num_steps(), pushes);
  });
}

TEST_F(Steppers, ExposeTheGradientOfAWholeStepIfThereIsOne) {
  on_ranks(kSync, "", [](Rank& rank) {
    double seen = 0;
    rank.stepper.set_inspect([&](const StepResult& result) { seen = result.grad_norm; });
    EXPECT_EQ(rank.advance(1).grad_norm, seen);
    EXPECT_GT(seen, 0);
  });
  for (const Keys& keys : {kStages, kServers}) {
    on_ranks(keys, "", [](Rank& rank) {
      EXPECT_THAT(message_of<UsageError>([&] { rank.stepper.set_inspect({}); }),
                  ::testing::HasSubstr("none has a gradient of the whole model"));
    });
  }
}

/// The same bits as an undisturbed run. With a server, the order of workers is random: then only the state is compared.
TEST_F(Steppers, AreMadeAnewFromACheckpointAfterAFailureInTheMiddleOfAStep) {
  for (const Keys& keys : {kSync, kStages, kServers}) {
    SCOPED_TRACE(keys.front());
    const bool is_exact = keys != kServers;
    on_ranks(keys, "", [&](Rank& rank) {
      while (rank.state.step < 3) rank.advance(3);
      rank.state.save(runs_ / ("part" + keys.front()), 0, rank.windows);
      if (!is_exact) return;
      while (rank.state.step < 6) rank.advance(6);
      rank.state.save(runs_ / ("whole" + keys.front()), 0, rank.windows);
    });
    const auto begun = checkpoint_tensors(runs_ / ("part" + keys.front()));
    on_ranks(keys, "part" + keys.front(), [&](Rank& rank) {
      const int64_t last = rank.state.step + (is_exact ? 1 : 0);
      const auto made = rank.batch_of;
      rank.batch_of = [&, made](int64_t step) {
        if (step >= last) throw DataError({"test", "step", "has no batch", "", ""});
        return made(step);
      };
      try {
        for (;;) rank.advance(6);
      } catch (const Error& error) {
        rank.world.abort(error.what());  // the other may wait for this rank
      }
      EXPECT_EQ(rank.state.step, rank.stepper.step());
      EXPECT_EQ(rank.state.clocks, rank.stepper.clocks());
    });
    on_ranks(keys, "part" + keys.front(), [&](Rank& rank) {
      EXPECT_EQ(rank.stepper.step(), 3);
      if (is_exact) {
        while (rank.state.step < 6) rank.advance(6);
      } else {
        rank.advance(6, /*stops=*/true);
      }
      rank.state.save(runs_ / ("again" + keys.front()), 0, rank.windows);
    });
    const auto want = is_exact ? checkpoint_tensors(runs_ / ("whole" + keys.front())) : begun;
    EXPECT_EQ(first_difference(checkpoint_tensors(runs_ / ("again" + keys.front())), want), "");
  }
}

}  // namespace
}  // namespace caravan::testing::stepper_test
