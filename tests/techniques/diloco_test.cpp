/// Replicas that step independently: against one process, and against a simulation that runs all replicas one after
/// another.

#include <gmock/gmock.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "caravan/base/error.h"
#include "caravan/step/batch.h"
#include "caravan/train/run_setup.h"
#include "tests/needs.h"
#include "tests/train/tiny_run.h"

namespace caravan::testing::diloco_test {
namespace {

using Keys = std::vector<std::string>;
using Tensors = std::map<std::string, at::Tensor>;

Keys operator+(Keys a, const Keys& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// Without biases: the gradients of key biases are only rounding errors, of which AdamW makes whole steps.
const Architecture kModel = Architecture::llama();
const Keys kDiloco{"data_parallel.technique=diloco"};
/// A mean of steps is the step of a mean: inner SGD without clipping, outer SGD of rate 1, rounds of one step.
const Keys kSgd{"optimizer.kind=sgd", "optimizer.lr=0.2", "optimizer.clip_norm=0"};
const Keys kMeans{"data_parallel.local_steps=1", "data_parallel.outer_lr=1", "data_parallel.outer_momentum=0"};

/// Only parameters.
Tensors weights_of(const std::filesystem::path& run) {
  Tensors all = checkpoint_tensors(run);
  std::erase_if(all, [](const auto& tensor) { return is_training_state(tensor.first); });
  return all;
}

class Diloco : public ::testing::Test {
 protected:
  void train_as(const std::string& name, int ranks, const Keys& keys, TrainOptions more = {}) const {
    more.recipe = runs_.recipe(kModel, name, keys);
    more.folders = runs_.folders();
    train_on(ranks, more);
  }
  Tensors simulate(int replicas, int64_t local_steps, int64_t steps, double lr, double momentum) const;

  const TinyRuns runs_;
};

/// The weights after `steps`, with AdamW and clipping as the recipe has them. `replicas` models in one process step one
/// after another on the rows that a replica is given, and are then moved by SGD of torch's formula.
Tensors Diloco::simulate(int replicas, int64_t local_steps, int64_t steps, double lr, double momentum) const {
  const Recipe recipe = runs_.recipe(kModel, "simulated", {"train.steps=" + std::to_string(steps)});
  const Dataset data = open_dataset(recipe.data, runs_.folders());
  const TrainWindows windows = data.train_windows(recipe.model.context, recipe.train.seed);
  const int64_t rows = recipe.train.global_batch, own = rows / replicas;
  Tensors result;
  const auto run = [&](const std::shared_ptr<Communicator>& world) {
    const at::NoGradGuard no_grad;
    const Mesh mesh = Mesh::create(world, mesh_axes(recipe, 1));
    std::vector<std::unique_ptr<RunState>> states;
    for (int i = 0; i < replicas; ++i) states.push_back(std::make_unique<RunState>(recipe, data.tokenizer, mesh));
    Tensors anchor, velocity;
    for (const Parameter* parameter : states[0]->model().parameters()) {
      anchor[parameter->name()] = parameter->sharded().detach().clone();
      velocity[parameter->name()] = at::zeros_like(anchor[parameter->name()]);
    }
    for (int64_t first = 0; first < steps; first += local_steps) {
      const int64_t last = std::min(first + local_steps, steps);
      Tensors moved;
      for (int i = 0; i < replicas; ++i) {
        RunState& state = *states[static_cast<size_t>(i)];
        TrainStep train_step(
            state.engine(), state.optimizer(),
            {.seed = static_cast<uint64_t>(recipe.train.seed), .clip_norm = recipe.optimizer.clip_norm});
        for (int64_t step = first; step < last; ++step) {
          const at::AutoGradMode with_gradients(true);
          const TrainBatch all = make_batch(windows, step * rows, rows);
          const TrainBatch part = piece_of(all, {{i * own, 0}, {own, windows.context()}});
          train_step.run(on_its_own(part), step, state.learning_rate().at(step));
        }
        for (const Parameter* parameter : state.model().parameters()) {
          at::Tensor& sum = moved[parameter->name()];
          const at::Tensor own_move = (anchor.at(parameter->name()) - parameter->sharded().detach()).to(at::kDouble);
          sum = sum.defined() ? sum + own_move : own_move;
        }
      }
      for (auto& [name, weight] : anchor) {
        const at::Tensor gradient = moved.at(name) / replicas;
        velocity.at(name) = momentum * velocity.at(name) + gradient;
        weight = (weight - lr * (gradient + momentum * velocity.at(name))).to(at::kFloat);
      }
      for (const auto& state : states) {
        for (Parameter* parameter : state->model().parameters()) {
          parameter->sharded().detach().copy_(anchor.at(parameter->name()));
        }
        state->engine().state().bump_version();
      }
    }
    result = anchor;
  };
  run_thread_ranks(1, run, {.timeout = std::chrono::seconds(20)});
  return result;
}

TEST_F(Diloco, MeansOfSgdStepsMatchOneProcess) {
  needs({"linear"});  // the tolerance is that of a falling learning rate
  train_as("one", 1, kSgd);
  for (const int ranks : {1, 2, 3, 4}) {
    const std::string name = "means" + std::to_string(ranks);
    train_as(name, ranks, kSgd + kDiloco + kMeans);
    const auto [error, worst] = distance(weights_of(runs_ / name), weights_of(runs_ / "one"));
    EXPECT_LT(error, 1e-4) << ranks << " ranks, " << worst;  // sums in another order, over all steps
    const std::vector<double> got = losses(runs_ / name), want = losses(runs_ / "one");
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i] / want[i], 1, 1e-5) << ranks << " ranks, line " << i;
  }
}

TEST_F(Diloco, RoundsMatchReplicasRunOneAfterAnother) {
  const Keys keys = kDiloco + Keys{"train.steps=7", "data_parallel.local_steps=3", "data_parallel.outer_lr=0.6",
                                   "data_parallel.outer_momentum=0.8", "train.micro_batch=0"};
  for (const int replicas : {2, 3}) {
    const Tensors want = simulate(replicas, 3, 7, 0.6, 0.8);
    const std::string name = "rounds" + std::to_string(replicas);
    train_as(name, replicas, keys);
    // The means are rounded differently, which AdamW amplifies if gradients are small. Without the outer momentum, or
    // with a round more or less, the distance is at least 0.1.
    const auto [error, worst] = distance(weights_of(runs_ / name), want);
    EXPECT_LT(error, 1e-4) << replicas << " replicas, " << worst;
    const Tensors other = simulate(replicas, 3, 7, 0.6, 0.7);
    EXPECT_GT(distance(weights_of(runs_ / name), other).first, 1e-3);
  }
}

TEST_F(Diloco, ReplicasMayBeSplit) {
  const Keys keys = kDiloco + Keys{"train.steps=6", "data_parallel.local_steps=3", "train.micro_batch=0"};
  train_as("whole", 2, keys);
  for (const std::string axis : {"tp", "cp", "pp"}) {
    train_as(axis, 4, keys + Keys{"mesh." + axis + "=2"});
    const auto [error, worst] = distance(weights_of(runs_ / axis), weights_of(runs_ / "whole"));
    EXPECT_LT(error, 2e-3) << axis << ", " << worst;  // AdamW, where gradients are small
  }
}

TEST_F(Diloco, SendsNothingInARound) {
  const auto sent = [&](const std::string& name, const Keys& keys) {
    train_as(name, 2, Keys{"train.steps=6", "train.eval_every=0"} + keys);
    std::vector<int64_t> bytes;
    for (const std::string& line : log_lines(runs_ / name)) {
      bytes.push_back(nlohmann::json::parse(line)["bytes_sent"].get<int64_t>());
    }
    return bytes;
  };
  const std::vector<int64_t> ddp = sent("ddp", {"train.micro_batch=0"});
  const std::vector<int64_t> own = sent("own", kDiloco + Keys{"data_parallel.local_steps=3", "train.micro_batch=0"});
  ASSERT_EQ(own.size(), 2U);  // lines of the log: of rounds
  // One all-reduce of parameters in place of three of gradients, and of 24 bytes in place of the loss and the norm.
  EXPECT_EQ(own.back(), (ddp.back() - 16 - 560 + 24) / 3);
}

TEST_F(Diloco, ContinuesBitwiseFromACheckpoint) {
  needs({"adamw"});
  const Keys keys = kDiloco + Keys{"train.steps=8", "data_parallel.local_steps=2", "checkpoint.every=4"};
  train_as("whole", 3, keys);
  train_as("parts", 3, keys, {.stop_after = 4});
  const Tensors saved = checkpoint_tensors(runs_ / "parts");
  EXPECT_TRUE(saved.contains("stepper.outer_momentum.head.norm.weight"));
  const at::Tensor moments = saved.at("optimizer.exp_avg.head.norm.weight");
  ASSERT_EQ(moments.size(0), 3) << "one for each replica";
  EXPECT_GT((moments[0] - moments[2]).abs().max().item<double>(), 0);
  train_as("parts", 3, keys, {.resume = true});
  EXPECT_EQ(first_difference(checkpoint_tensors(runs_ / "parts"), checkpoint_tensors(runs_ / "whole")), "");
}

/// Fewer replicas, none, and replicas again.
TEST_F(Diloco, MomentsBecomeTheirMeanOnOtherRanks) {
  needs({"adamw"});
  const Keys keys = Keys{"data_parallel.local_steps=2", "optimizer.lr=1e-12"};
  train_as("run", 3, kDiloco + keys + Keys{"train.steps=4"});
  const Tensors before = checkpoint_tensors(runs_ / "run");
  const std::string name = "optimizer.exp_avg_sq.head.norm.weight";
  EXPECT_EQ(before.at(name).size(0), 3);
  train_as("run", 2, Keys{"train.steps=5", "optimizer.beta1=1e-9", "optimizer.beta2=0.999999"}, {.resume = true});
  const Tensors after = checkpoint_tensors(runs_ / "run");
  const at::Tensor mean = before.at(name).mean(0);
  EXPECT_LT((after.at(name) - mean).norm().item<double>(), 1e-2 * mean.norm().item<double>());
  EXPECT_FALSE(after.contains("stepper.outer_momentum.head.norm.weight"));
  train_as("run", 4, kDiloco + keys + Keys{"train.steps=6"}, {.resume = true});
  EXPECT_EQ(checkpoint_tensors(runs_ / "run").at(name).size(0), 4);
}

TEST_F(Diloco, RefusesWhatNeedsTheGradientOfAWholeStep) {
  needs({"ddp", "topk", "pipedream"});
  const auto refusal = [&](const Keys& keys) {
    try {
      plan_batch(runs_.recipe(kModel, "run", kDiloco + keys), 2);
    } catch (const UsageError& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_THAT(refusal({"precision.compute=fp16"}), ::testing::HasSubstr("replicas of diloco have different gradients"));
  EXPECT_THAT(refusal({"data_parallel.hook=topk"}), ::testing::HasSubstr("use data_parallel.technique = \"ddp\""));
  EXPECT_THAT(
      refusal({"mesh.pp=2", "pipeline.schedule=pipedream", "optimizer.clip_norm=0", "model.tie_embeddings=false"}),
      ::testing::AllOf(::testing::HasSubstr("\"diloco\" does not fit: pipedream steps independently"),
                       ::testing::HasSubstr("use data_parallel.technique = \"ddp\", or")));
  EXPECT_THAT(refusal({"data_parallel.local_steps=0"}), ::testing::HasSubstr("data_parallel.local_steps"));
  EXPECT_THAT(refusal({"data_parallel.outer_momentum=1"}), ::testing::HasSubstr("data_parallel.outer_momentum"));
}

}  // namespace
}  // namespace caravan::testing::diloco_test
