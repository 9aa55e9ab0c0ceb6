/// Runs of versions in which experts had no adapters: neither recipe nor config says what patterns mean.
#include <algorithm>
#include <gmock/gmock.h>

#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/comm/record.h"
#include "caravan/formats/huggingface/load_model.h"
#include "caravan/nn/lora.h"
#include "tests/data/support.h"
#include "tests/needs.h"
#include "tests/train/earlier_run.h"
#include "tests/train/tiny_run.h"

namespace caravan::testing::earlier_adapters_test {
namespace {

using ::testing::HasSubstr;
using Keys = std::vector<std::string>;

bool adapts_experts(const ModelConfig& config) {
  return std::ranges::any_of(adapted_layers(config), [](const LinearShape& layer) { return layer.experts > 0; });
}

TEST(EarlierAdapters, AreLoadedResumedAndStartedFrom) {
  needs_chosen({"mesh.ep=2"});
  const TinyRuns runs;
  const Keys patterns{"moe.experts=2", "moe.shared=8", "lora.rank=2", "lora.targets=[\"*\"]", "train.steps=6"};
  const Keys as_before{"lora.experts=false", "lora.dropout=0.1", "lora.dora=true"};
  const auto options = [&](const std::string& dir, const Keys& more) {
    return TrainOptions{.recipe = runs.recipe(Architecture::llama(), dir, together({patterns, more})),
                        .folders = runs.folders()};
  };
  const auto stopped = [&](TrainOptions of, int64_t step) {
    of.stop_after = step;
    return of;
  };
  train_on(1, options("whole", as_before));
  train_on(1, stopped(options("parts", as_before), 2));
  forget_experts(runs / "parts");
  const std::string old = read_file(runs / "parts/recipe.toml");

  const LoadedModel loaded = load_model(runs / "parts", Mesh::create(make_record_world(0, 1), {{"dp", 1}}));
  EXPECT_FALSE(adapts_experts(loaded.model->config()));
  EXPECT_EQ(loaded.model->config().lora.targets, Keys{"*"});
  const auto again = [&](const Keys& set) { return load_recipe(runs / "parts/recipe.toml", set); };
  TrainOptions resumed{.recipe = again({"mesh.ep=2"}), .folders = runs.folders(), .resume = true};
  train_on(2, resumed);
  const std::vector<double> want = losses(runs / "whole"), found = losses(runs / "parts");
  ASSERT_EQ(found.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(found[i] / want[i], 1, 1e-5) << i;

  const std::string source = "train.init_from=\"" + (runs / "parts").string() + "\"";
  EXPECT_FALSE(adapts_experts(parse_recipe("", "r", {source}).model));
  EXPECT_THAT(message_of<UsageError>([&] { parse_recipe(old, "copied.toml"); }), HasSubstr("lora.experts = false"));
}

/// A recipe that is not the run's own does not say what its patterns mean either.
TEST(EarlierAdapters, AreResumedWithAnotherRecipe) {
  const TinyRuns runs;
  const auto options = [&](const Keys& more) {
    const Keys keys{"moe.experts=2", "lora.rank=2", "lora.targets=[\"*\"]", "train.steps=2"};
    return TrainOptions{.recipe = runs.recipe(Architecture::gpt2(), "run", together({keys, more})),
                        .folders = runs.folders()};
  };
  TrainOptions first = options({"lora.experts=false"});
  first.stop_after = 1;
  train_on(1, first);
  forget_experts(runs / "run");
  TrainOptions other = options({"lora.experts=true"});
  other.resume = true;
  EXPECT_THAT(message_of<DataError>([&] { train_on(1, other); }),
              HasSubstr("lora.experts is false there, true in this run"));
  TrainOptions same = options({});
  same.resume = true;
  EXPECT_NO_THROW(train_on(1, same));
  EXPECT_THAT(read_file(runs / "run/recipe.toml"), HasSubstr("experts = false\n"));
}

}  // namespace
}  // namespace caravan::testing::earlier_adapters_test
