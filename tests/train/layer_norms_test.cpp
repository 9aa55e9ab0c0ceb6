#include <cmath>
#include <gmock/gmock.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "caravan/base/error.h"
#include "tests/data/support.h"
#include "tests/needs.h"
#include "tests/train/tiny_run.h"

namespace caravan::testing::layer_norms_test {
namespace {

using ::testing::HasSubstr;
using Keys = std::vector<std::string>;
using Tensors = std::map<std::string, at::Tensor>;

const Keys kShown{"log.tensors=2",
                  "optimizer.kind=sgd",
                  "optimizer.lr=0.1",
                  "optimizer.clip_norm=0",
                  "train.steps=4",
                  "model.dropout=0",
                  "optimizer.momentum=0",
                  "optimizer.weight_decay=0",
                  "optimizer.warmup_steps=0",
                  "optimizer.schedule=constant"};

Tensors train_with(const TinyRuns& runs, const std::string& dir, int ranks, const Keys& keys,
                   std::optional<int64_t> stop_after = {}) {
  train_on(
      ranks,
      {.recipe = runs.recipe(Architecture::gpt2(), dir, keys), .folders = runs.folders(), .stop_after = stop_after});
  return checkpoint_tensors(runs / dir);
}

/// "layers" of the line of each step; null where there is none.
std::vector<nlohmann::json> layers_of(const std::filesystem::path& run) {
  std::vector<nlohmann::json> all;
  for (const std::string& line : log_lines(run)) {
    const auto json = nlohmann::json::parse(line);
    if (json.contains("loss")) all.push_back(json.value("layers", nlohmann::json()));
  }
  return all;
}

/// From checkpoints before and after step 2: without momentum and decay an update is lr times the gradient.
TEST(LayerNorms, AreThoseOfTheTensors) {
  const TinyRuns runs;
  const Tensors before = train_with(runs, "before", 1, kShown, 1), after = train_with(runs, "after", 1, kShown, 2);
  std::map<std::string, double> values, updates;
  for (const auto& [name, tensor] : before) {
    if (name.starts_with("optimizer.")) continue;
    const size_t dot = name.find('.');
    const std::string layer = name.substr(0, name.starts_with("blocks.") ? name.find('.', dot + 1) : dot);
    values[layer] += tensor.to(at::kDouble).square().sum().item<double>();
    updates[layer] += (after.at(name) - tensor).to(at::kDouble).square().sum().item<double>();
  }
  const nlohmann::json layers = layers_of(runs / "after").at(1);
  ASSERT_EQ(layers.size(), values.size());
  EXPECT_GE(layers.size(), 4U) << "embedding, blocks, head";
  for (const auto& [layer, sum] : values) {
    const double norm = std::sqrt(sum), update = std::sqrt(updates[layer]);
    EXPECT_NEAR(layers.at(layer).at("norm"), norm, 1e-6 * norm) << layer;
    EXPECT_NEAR(layers.at(layer).at("update_ratio").get<double>() * norm, update, 1e-4 * update) << layer;
    EXPECT_NEAR(layers.at(layer).at("grad_norm").get<double>() * 0.1, update, 1e-4 * update) << layer;
  }
}

TEST(LayerNorms, AreTheSameInAllLayouts) {
  needs({"zero1", "zero2", "zero3", "tensor_1d"});
  const TinyRuns runs;
  train_with(runs, "one", 1, kShown);
  const std::vector<nlohmann::json> want = layers_of(runs / "one");
  ASSERT_EQ(want.size(), 4U);
  EXPECT_TRUE(want[0].is_null() && want[2].is_null());
  const std::vector<Keys> layouts{{"data_parallel.technique=ddp"},
                                  {"data_parallel.technique=zero1"},
                                  {"data_parallel.technique=zero2"},
                                  {"data_parallel.technique=zero3"},
                                  {"mesh.tp=2"},
                                  {"mesh.pp=2", "pipeline.micro_batches=4"},
                                  {"offload.optimizer=host", "offload.gradients=host"}};
  for (size_t i = 0; i < layouts.size(); ++i) {
    train_with(runs, std::to_string(i), 2, together({kShown, layouts[i]}));
    const std::vector<nlohmann::json> got = layers_of(runs / std::to_string(i));
    ASSERT_EQ(got.size(), 4U);
    for (const size_t step : {1, 3}) {
      ASSERT_EQ(got[step].size(), want[step].size()) << layouts[i].front();
      for (const auto& [layer, numbers] : want[step].items()) {
        for (const auto& [name, number] : numbers.items()) {
          EXPECT_NEAR(got[step][layer][name], number, 1e-4 * number.get<double>())
              << layer << ' ' << name << " of " << layouts[i].front();
        }
      }
    }
  }
}

/// They change nothing else, and steps that are not logged otherwise are.
TEST(LayerNorms, LeaveTheRunAsItIs) {
  const TinyRuns runs;
  const Keys seldom = together({kShown, {"train.log_every=4", "precision.compute=fp16"}});
  const Tensors shown = train_with(runs, "shown", 2, seldom);
  EXPECT_EQ(layers_of(runs / "shown").size(), 2U) << "steps 2 and 4";
  EXPECT_EQ(first_difference(train_with(runs, "not", 2, together({seldom, {"log.tensors=0"}})), shown), "");
}

TEST(LayerNorms, NeedOneStepOfAllRanks) {
  needs({"diloco"});
  const TinyRuns runs;
  EXPECT_THAT(message_of<UsageError>([&] {
                train_with(runs, "bad", 2, together({kShown, {"data_parallel.technique=diloco"}}));
              }),
              HasSubstr("log.tensors"));
  EXPECT_FALSE(std::filesystem::exists(runs / "bad"));
}

}  // namespace
}  // namespace caravan::testing::layer_norms_test
