/// Runs with parameter servers and replicas, through train().

#include <algorithm>
#include <gmock/gmock.h>
#include <numeric>
#include <sstream>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "caravan/base/error.h"
#include "tests/needs.h"
#include "tests/train/tiny_run.h"

namespace caravan::testing::async_test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::vector<std::string> with(std::vector<std::string> set, const std::vector<std::string>& more) {
  set.insert(set.end(), more.begin(), more.end());
  return set;
}

const std::vector<std::string> kAsync{"data_parallel.technique=param_server",
                                      "data_parallel.mode=async",
                                      "data_parallel.servers=1",
                                      "data_parallel.drain=5",
                                      "train.eval_every=10",
                                      "checkpoint.every=10"};
const std::vector<std::string> kBounded{"data_parallel.technique=param_server",
                                        "data_parallel.mode=bounded",
                                        "data_parallel.staleness=2",
                                        "train.eval_every=10",
                                        "checkpoint.every=10",
                                        "optimizer.clip_norm=0"};

class AsyncRuns : public ::testing::Test {
 protected:
  TrainOptions options(const std::string& dir, const std::vector<std::string>& set) const {
    return {.recipe = runs_.recipe(Architecture::gpt2(), dir, set), .folders = runs_.folders()};
  }
  std::vector<json> log(const std::string& dir) const {
    std::vector<json> lines;
    for (const std::string& line : log_lines(runs_ / dir)) lines.push_back(json::parse(line));
    return lines;
  }
  CheckpointInfo info(const std::string& dir) const { return CheckpointReader(find_checkpoint(runs_ / dir)).info(); }

  const TinyRuns runs_;
};

int64_t sum_of(const json& numbers) {
  const auto all = numbers.get<std::vector<int64_t>>();
  return std::accumulate(all.begin(), all.end(), int64_t{0});
}

/// Evaluations, checkpoints and log lines happen at drains.
TEST_F(AsyncRuns, ALineForEachDrain) {
  needs({"adamw"});
  train_on(3, options("async", kAsync));
  train_on(3, options("bounded", kBounded));
  for (const std::string dir : {"async", "bounded"}) {
    SCOPED_TRACE(dir);
    const std::vector<json> lines = log(dir);
    std::vector<int64_t> steps, evaluated;
    for (const json& line : lines) {
      steps.push_back(line["step"]);
      if (line.contains("val_loss")) evaluated.push_back(line["step"]);
      EXPECT_EQ(line["clocks"].size(), 3U);
      EXPECT_EQ(*std::min_element(line["clocks"].begin(), line["clocks"].end()), line["step"]);
      EXPECT_EQ(line["tokens"], sum_of(line["clocks"]) * 12 * 8);
      EXPECT_GT(sum_of(line["staleness"]), 0);
      EXPECT_GT(line["grad_norm"], 0);
      EXPECT_TRUE(dir == "async" || line["largest_lead"] <= 2) << line["largest_lead"];
    }
    EXPECT_EQ(steps, dir == "async" ? (std::vector<int64_t>{5, 10, 15, 20}) : (std::vector<int64_t>{10, 20}));
    EXPECT_EQ(evaluated, (std::vector<int64_t>{10, 20}));
    // Not less than in the middle: without a bound, late gradients may undo a little on a busy machine.
    EXPECT_LT(lines.back()["val_loss"], 3.5) << "it learns: a model that knows nothing has 5.5";
    const CheckpointInfo saved = info(dir);
    EXPECT_EQ(saved.step, 20);
    EXPECT_EQ(saved.clocks, lines.back()["clocks"].get<std::vector<int64_t>>());
    EXPECT_EQ(saved.optimizer_steps, sum_of(lines.back()["clocks"]));
  }
}

class Started final : public TrainObserver {
 public:
  bool has_started = false;
  void started(const TrainStart&) override { has_started = true; }
};

/// A resumed run has exactly the saved state on any number of ranks: it stops before its first step and saves again.
TEST_F(AsyncRuns, AResumedRunHasTheSameState) {
  train_on(3, options("run", with(kAsync, {"train.steps=10"})));
  const auto want = checkpoint_tensors(runs_ / "run");
  const CheckpointInfo before = info("run");
  for (const int ranks : {3, 2, 4}) {
    const auto resume = [&](const std::shared_ptr<Communicator>& world) {
      TrainOptions again = options("run", kAsync);
      Started observer;
      again.resume = true;
      again.observer = &observer;
      again.stop_requested = [&] { return observer.has_started; };
      train(again, world);
    };
    EXPECT_THROW(run_thread_ranks(ranks, resume, {.timeout = std::chrono::seconds(20)}), Interrupted);
    EXPECT_EQ(first_difference(checkpoint_tensors(runs_ / "run"), want), "") << ranks;
    const CheckpointInfo after = info("run");
    EXPECT_EQ(after.optimizer_steps, before.optimizer_steps);
    EXPECT_EQ(after.clocks, ranks == 3 ? before.clocks : std::vector<int64_t>(static_cast<size_t>(ranks), 10));
  }
  TrainOptions rest = options("run", kAsync);
  rest.resume = true;
  train_on(2, rest);
  EXPECT_EQ(info("run").step, 20);
  TrainOptions alone = options("run", with(kAsync, {"train.steps=22"}));
  alone.resume = true;
  train_on(1, alone);  // one rank waits for nobody
  EXPECT_TRUE(info("run").clocks.empty());
}

class Saved final : public TrainObserver {
 public:
  bool has_saved = false;
  void saved(const fs::path&) override { has_saved = true; }
};

TEST_F(AsyncRuns, ALostRankKeepsTheLastCheckpoint) {
  std::string message;
  run_thread_ranks(3,
                   [&](const std::shared_ptr<Communicator>& world) {
                     TrainOptions lost = options("run", kAsync);
                     Saved observer;
                     lost.observer = &observer;
                     lost.stop_requested = [&]() -> bool {  // in the step after the checkpoint
                       if (world->rank() == 1 && observer.has_saved)
                         throw DataError({"test", "rank", "is lost", "", ""});
                       return false;
                     };
                     try {
                       train(lost, world);
                     } catch (const DataError& error) {
                       world->abort(error.what());
                     } catch (const CommError& error) {
                       if (world->rank() == 0) message = error.what();
                     }
                   },
                   {.timeout = std::chrono::seconds(20)});
  EXPECT_THAT(message, AllOf(HasSubstr("rank 1"), HasSubstr("is lost")));
  EXPECT_EQ(info("run").step, 10);
}

TEST_F(AsyncRuns, RefusesADump) {
  TrainOptions dump = options("run", kAsync);
  dump.dump_dir = runs_ / "dump";
  dump.dump_steps = {3};
  std::string message;
  try {
    train_on(2, dump);
  } catch (const UsageError& error) {
    message = error.what();
  }
  EXPECT_THAT(message, HasSubstr("or data_parallel.mode = \"sync\""));
}

/// Sums in another order than one rank, in the same as ddp.
TEST_F(AsyncRuns, SynchronousServersAndReplicasAreDdp) {
  train_on(3, options("ddp", {"optimizer.clip_norm=0"}));
  for (const std::string servers : {"1", "2", "\"all\""}) {
    train_on(3, options("servers", {"data_parallel.technique=param_server", "data_parallel.servers=" + servers,
                                    "data_parallel.accumulate=full", "optimizer.clip_norm=0"}));
    EXPECT_EQ(losses(runs_ / "servers"), losses(runs_ / "ddp")) << servers;
    fs::remove_all(runs_ / "servers");
  }
  train_on(3,
           options("replicas", {"data_parallel.technique=replicas", "comm.backend=thread", "optimizer.clip_norm=0"}));
  EXPECT_EQ(losses(runs_ / "replicas"), losses(runs_ / "ddp"));
}

}  // namespace
}  // namespace caravan::testing::async_test
