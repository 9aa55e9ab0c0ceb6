#include <algorithm>
#include <gmock/gmock.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/engine/average_tensor.h"
#include "caravan/formats/huggingface/load_model.h"
#include "tests/data/support.h"
#include "tests/needs.h"
#include "tests/train/tiny_run.h"

namespace caravan::testing::average_test {
namespace {

using ::testing::HasSubstr;
using Keys = std::vector<std::string>;
using Tensors = std::map<std::string, at::Tensor>;

const Keys kAveraged{"optimizer.average=0.9", "optimizer.kind=sgd", "optimizer.lr=0.1",
                     "model.dropout=0",       "train.steps=6",      "train.eval_every=3"};

Tensors train_with(const TinyRuns& runs, const std::string& dir, int ranks, const Keys& keys,
                   std::optional<int64_t> stop_after = {}, bool resume = false) {
  train_on(ranks, {.recipe = runs.recipe(Architecture::gpt2(), dir, keys),
                   .folders = runs.folders(),
                   .resume = resume,
                   .stop_after = stop_after});
  return checkpoint_tensors(runs / dir);
}

/// val_loss_average of the lines that have one.
std::vector<double> average_losses(const std::filesystem::path& run) {
  std::vector<double> found;
  for (const std::string& line : log_lines(run)) {
    const std::string key = "\"val_loss_average\":";
    if (const size_t at = line.find(key); at != std::string::npos)
      found.push_back(std::stod(line.substr(at + key.size())));
  }
  return found;
}

/// From the weights of runs that end after each of the steps.
Tensors expected_average(const TinyRuns& runs) {
  Tensors average;
  for (int step = 0; step <= 6; ++step) {
    const std::string dir = "until" + std::to_string(step);
    const Tensors values = step == 0 ? train_with(runs, dir, 1, together({kAveraged, {"train.steps=0"}}))
                                     : train_with(runs, dir, 1, kAveraged, step);
    const double decay = std::min(0.9, (1.0 + step) / (10.0 + step));
    for (const auto& [name, tensor] : values) {
      if (name.starts_with("optimizer.")) continue;
      const at::Tensor value = tensor.to(at::kDouble);
      average[name] = step == 0 ? value : decay * average[name] + (1 - decay) * value;
    }
  }
  return average;
}

TEST(Average, IsThatOfTheWeightsOfAllSteps) {
  const TinyRuns runs;
  const Tensors got = train_with(runs, "one", 1, kAveraged);
  const Tensors want = expected_average(runs);
  size_t count = 0;
  for (const auto& [name, average] : want) {
    ASSERT_TRUE(got.contains(average_tensor(name))) << name;
    // Rounding of seven values in fp32.
    EXPECT_LE((got.at(average_tensor(name)) - average).abs().max().item<double>(), 1e-6) << name;
    ++count;
  }
  EXPECT_GT(count, 10U);
}

TEST(Average, IsTheSameInAllLayouts) {
  needs({"zero1", "zero2", "zero3", "tensor_1d"});
  const TinyRuns runs;
  const Tensors want = train_with(runs, "one", 1, kAveraged);
  const std::vector<double> losses = average_losses(runs / "one");
  ASSERT_EQ(losses.size(), 2U);
  const std::vector<Keys> layouts{{"data_parallel.technique=zero1"},
                                  {"data_parallel.technique=zero2"},
                                  {"data_parallel.technique=zero3"},
                                  {"mesh.tp=2"},
                                  {"mesh.pp=2", "pipeline.micro_batches=4"}};
  for (size_t i = 0; i < layouts.size(); ++i) {
    const std::string dir = std::to_string(i);
    const auto [apart, worst] = distance(train_with(runs, dir, 2, together({kAveraged, layouts[i]})), want);
    EXPECT_LE(apart, 1e-4) << worst << " of " << layouts[i].front();
    const std::vector<double> got = average_losses(runs / dir);
    ASSERT_EQ(got.size(), 2U) << layouts[i].front();
    for (size_t j = 0; j < 2; ++j) EXPECT_NEAR(got[j], losses[j], 1e-5) << layouts[i].front();
  }
}

/// An evaluation leaves weights and average as they are, and a resumed run goes on with both.
TEST(Average, GoesOn) {
  const TinyRuns runs;
  for (const std::string& kind : {std::string("adamw"), std::string("muon"), std::string("adafactor")}) {
    const Keys keys = together({kAveraged, {"optimizer.kind=" + kind, "precision.compute=bf16"}});
    const Tensors whole = train_with(runs, kind, 2, keys);
    EXPECT_EQ(first_difference(train_with(runs, kind + "-seldom", 2, together({keys, {"train.eval_every=0"}})), whole),
              "");
    train_with(runs, kind + "-parts", 2, keys, 2);
    EXPECT_EQ(first_difference(train_with(runs, kind + "-parts", 2, keys, {}, true), whole), "");
  }
  const Keys another = together({kAveraged, {"optimizer.average=0.5", "train.steps=8"}});
  train_with(runs, "fixed", 2, kAveraged);
  EXPECT_THAT(message_of<UsageError>([&] { train_with(runs, "fixed", 2, another, {}, true); }),
              HasSubstr("optimizer.average: is 0.5"));
}

TEST(Average, IsLoadedInPlaceOfTheWeights) {
  const TinyRuns runs;
  const Tensors tensors = train_with(runs, "run", 1, kAveraged);
  train_with(runs, "none", 1, {"train.steps=1"});
  run_thread_ranks(1, [&](const auto& world) {
    const Mesh mesh = Mesh::create(world, {{"dp", 1}});
    const LoadedModel loaded = load_model(runs / "run", mesh, StoredWeights::average);
    for (const Parameter* parameter : loaded.model->parameters()) {
      EXPECT_TRUE(at::equal(parameter->sharded(), tensors.at(average_tensor(parameter->name())))) << parameter->name();
    }
    EXPECT_THAT(message_of<UsageError>([&] { load_model(runs / "none", mesh, StoredWeights::average); }),
                HasSubstr("has no average of its weights"));
  });
}

/// Frozen weights have no average: those of the run are loaded.
TEST(Average, OfAdaptersAlone) {
  const TinyRuns runs;
  const Tensors tensors = train_with(runs, "lora", 1, together({kAveraged, {"lora.rank=2"}}));
  const auto is_of_adapter = [](const auto& tensor) {
    return tensor.first.starts_with("optimizer.average.") && tensor.first.ends_with(".lora.a.weight");
  };
  EXPECT_GE(std::ranges::count_if(tensors, is_of_adapter), 2);
  EXPECT_FALSE(tensors.contains("optimizer.average.embedding.token.weight"));
  run_thread_ranks(1, [&](const auto& world) {
    const LoadedModel loaded = load_model(runs / "lora", Mesh::create(world, {{"dp", 1}}), StoredWeights::average);
    EXPECT_TRUE(loaded.model != nullptr);
  });
}

TEST(Average, NeedsStepsOfAllRanksTogether) {
  needs({"diloco"});
  const TinyRuns runs;
  EXPECT_THAT(message_of<UsageError>([&] {
                train_with(runs, "bad", 2, together({kAveraged, {"data_parallel.technique=diloco"}}));
              }),
              HasSubstr("optimizer.average"));
}

}  // namespace
}  // namespace caravan::testing::average_test
