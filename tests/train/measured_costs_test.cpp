#include "caravan/train/model/measured_costs.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "tests/train/tiny_run.h"

namespace caravan::testing::measured_costs_test {
namespace {

/// The cut decides which rank computes a layer, not what is computed.
TEST(MeasuredCosts, CutEveryModelThatThePipelineTakes) {
  const TinyRuns runs;
  const std::vector<std::vector<std::string>> models{
      {},
      {"lora.rank=4"},
      {"lora.rank=2", "precision.compute=bf16"},
      {"precision.compute=bf16"},
      {"model.tie_embeddings=false"},
      {"moe.experts=2", "moe.balance=batch"},
      {"moe.experts=2", "moe.balance=batch", "lora.rank=2"},
  };
  for (size_t i = 0; i < models.size(); ++i) {
    const auto losses_with = [&](const std::string& cut) {
      std::vector<std::string> set{"mesh.pp=2",      "train.steps=3",   "train.micro_batch=12",
                                   "model.layers=3", "model.dropout=0", "pipeline.cut=" + cut};
      set.insert(set.end(), models[i].begin(), models[i].end());
      const std::string dir = cut + std::to_string(i);
      train_on(2, {.recipe = runs.recipe(Architecture::gpt2(), dir, set), .folders = runs.folders()});
      return losses(runs / dir);
    };
    const std::vector<double> measured = losses_with("measured"), want = losses_with("flops");
    ASSERT_EQ(measured.size(), 3U);
    for (size_t step = 0; step < 3; ++step) {
      // The same numbers except for the order of sums, whose effect the weights of bf16 increase.
      const bool is_bf16 = std::ranges::find(models[i], "precision.compute=bf16") != models[i].end();
      EXPECT_NEAR(measured[step], want[step], is_bf16 ? 1e-2 : 1e-4) << i << ", step " << step;
    }
  }
}

TEST(MeasuredCosts, AreOneForEachBlockAndTheSameOnAllRanks) {
  const TinyRuns runs;
  const Recipe recipe = runs.recipe(Architecture::gpt2(), "run", {"mesh.pp=2", "model.layers=5", "lora.rank=4"});
  ModelConfig config = recipe.model;
  config.vocabulary = 256;
  std::vector<UnitCosts> costs(2);
  run_thread_ranks(2, [&](const auto& world) {
    const Mesh mesh = Mesh::create(world, {{"pp", 2}});
    costs[static_cast<size_t>(world->rank())] = measured_costs(recipe, config, mesh);
  });
  EXPECT_EQ(costs[0].of_units, costs[1].of_units);
  EXPECT_EQ(costs[0].speeds, costs[1].speeds);
  EXPECT_EQ(costs[0].of_units.size(), 7U);
}

}  // namespace
}  // namespace caravan::testing::measured_costs_test
