#include "caravan/schedule/stages.h"

#include <algorithm>
#include <gmock/gmock.h>
#include <limits>
#include <numeric>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "caravan/base/error.h"
#include "tests/techniques/together/technique.h"

namespace caravan::testing::stages_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

ModelConfig model_of(int64_t layers) {
  return {.layers = layers, .width = 64, .heads = 4, .context = 32, .vocabulary = 256};
}

PipelineChoice cut_as(int64_t degree, const RecipeValue& cut) {
  return {.degree = degree, .schedule = {"pipeline", first_of("pipeline").name, {{"cut", cut}}}};
}

std::string error_of(const PipelineChoice& choice, const ModelConfig& model) {
  try {
    stage_of_units(choice, model, unit_flops(model));
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(UnitFlops, AddUpToTheModel) {
  ModelConfig model = model_of(5);
  const std::vector<double> flops = unit_flops(model);
  ASSERT_EQ(flops.size(), 7U);
  EXPECT_EQ(flops.front(), 0);
  EXPECT_EQ(flops[1], 3 * (2 * 12 * 64 * 64 + 4 * 32 * 64));  // GPT: 12 h^2 weights, and scores times values
  EXPECT_EQ(flops.back(), 3 * 2 * 64 * 256);
  EXPECT_DOUBLE_EQ(std::accumulate(flops.begin(), flops.end(), 0.0), model.flops_per_token(32));
}

TEST(UnitFlops, CountTheExpertsThatATokenTakes) {
  ModelConfig model = model_of(2);
  const double dense = unit_flops(model)[1];
  model.moe = {.experts = 8, .top_k = 2};
  const double mlp = 3 * 2 * 2 * 64 * 256;
  const double router = 3 * 2 * 64 * 8;
  EXPECT_DOUBLE_EQ(unit_flops(model)[1], dense + mlp + router);
}

TEST(StageOfUnits, LeftOverLayersGoToTheMiddle) {
  const PipelineChoice choice = cut_as(4, "layers");
  const ModelConfig six = model_of(6);
  EXPECT_THAT(stage_of_units(choice, six, unit_flops(six)), ElementsAre(0, 0, 1, 1, 2, 2, 3, 3));
  const ModelConfig seven = model_of(7);
  EXPECT_THAT(stage_of_units(choice, seven, unit_flops(seven)), ElementsAre(0, 0, 0, 1, 1, 2, 2, 3, 3));
}

TEST(StageOfUnits, ByHand) {
  const PipelineChoice choice = cut_as(2, std::vector<int64_t>{1, 3});
  EXPECT_THAT(stage_of_units(choice, model_of(4), unit_flops(model_of(4))), ElementsAre(0, 0, 1, 1, 1, 1));
}

TEST(StageOfUnits, ByCostGivesTheStageWithTheHeadFewerLayers) {
  const PipelineChoice choice{.degree = 2};
  EXPECT_THAT(stage_of_units(choice, model_of(6), {0, 1, 1, 1, 1, 1, 1, 2}), ElementsAre(0, 0, 0, 0, 0, 1, 1, 1));
}

/// A rank of half the speed gets half the layers, in each of its stages.
TEST(StageOfUnits, ByCostGivesASlowRankFewerLayers) {
  const std::vector<double> costs{0, 1, 1, 1, 1, 1, 1, 0};
  EXPECT_THAT(stage_of_units({.degree = 2}, model_of(6), costs, {1, 0.5}), ElementsAre(0, 0, 0, 0, 0, 1, 1, 1));
  const PipelineChoice twice = pipeline_of("interleaved", 2, 2);
  EXPECT_THAT(stage_of_units(twice, model_of(6), costs, {0.5, 1}), ElementsAre(0, 0, 1, 1, 2, 3, 3, 3));
}

TEST(StageOfUnits, CutsForEveryStageThatARankHolds) {
  PipelineChoice choice = pipeline_of("interleaved", 2, 2);
  choice.schedule.set("cut", "layers");
  EXPECT_THAT(stage_of_units(choice, model_of(4), unit_flops(model_of(4))), ElementsAre(0, 0, 1, 2, 3, 3));
}

TEST(StageOfUnits, RefusesMoreStagesThanLayers) {
  EXPECT_THAT(error_of({.degree = 4}, model_of(3)), HasSubstr("4 stages for 3 layers"));
  EXPECT_THAT(error_of({.degree = 4}, model_of(3)), HasSubstr("mesh.pp = 3"));
  const PipelineChoice halves = pipeline_of("zb-v", 2, 2);
  EXPECT_THAT(error_of(halves, model_of(3)), HasSubstr("4 stages for 3 layers"));
}

TEST(StageOfUnits, RefusesLayersByHandThatDoNotAddUp) {
  for (const std::vector<int64_t>& layers : {std::vector<int64_t>{1, 2}, {4}, {0, 4}, {5, -1}, {1, 1, 2}}) {
    EXPECT_THAT(error_of(cut_as(2, layers), model_of(4)), HasSubstr("use [2, 2]"));
  }
  EXPECT_EQ(error_of(cut_as(2, std::vector<int64_t>{3, 1}), model_of(4)), "");
}

/// The smallest largest time of a stage, over all ways to cut. `speeds`: of all stages, these and those before.
double least_of_all_cuts(const std::vector<double>& costs, size_t first_layer, int64_t stages,
                         const std::vector<double>& speeds) {
  const size_t last_layer = costs.size() - 2;
  double best = std::numeric_limits<double>::infinity();
  for (size_t end = first_layer; end <= last_layer; ++end) {
    const bool is_last = stages == 1;
    if (is_last && end != last_layer) continue;
    double cost = first_layer == 1 ? costs.front() : 0;
    for (size_t i = first_layer; i <= end; ++i) cost += costs[i];
    if (is_last) cost += costs.back();
    const double rest = is_last ? 0 : least_of_all_cuts(costs, end + 1, stages - 1, speeds);
    best = std::min(best, std::max(cost / speeds[speeds.size() - static_cast<size_t>(stages)], rest));
  }
  return best;
}

RC_GTEST_PROP(CutByCost, IsTheBestOfAll, ()) {
  const auto layers = *rc::gen::inRange<int64_t>(1, 9);
  const auto stages = *rc::gen::inRange<int64_t>(1, layers + 1);
  const auto whole = *rc::gen::container<std::vector<int>>(static_cast<size_t>(layers) + 2, rc::gen::inRange(0, 20));
  const std::vector<double> costs(whole.begin(), whole.end());
  const auto are_alike = *rc::gen::arbitrary<bool>();
  std::vector<double> speeds(static_cast<size_t>(stages), 1);
  for (double& speed : speeds) speed = are_alike ? 1 : *rc::gen::inRange(1, 5);
  const std::vector<int> stage_of = cut_by_cost(costs, stages, are_alike ? std::vector<double>{} : speeds);
  RC_ASSERT(stage_of.size() == costs.size());
  std::vector<double> cost(static_cast<size_t>(stages));
  std::vector<int> num_layers(static_cast<size_t>(stages));
  for (size_t i = 0; i < costs.size(); ++i) {
    const auto stage = static_cast<size_t>(stage_of.at(i));
    cost.at(stage) += costs[i];
    if (i > 0) RC_ASSERT(stage_of[i] - stage_of[i - 1] == 0 || stage_of[i] - stage_of[i - 1] == 1);
    if (i > 0 && i + 1 < costs.size()) ++num_layers[stage];
  }
  RC_ASSERT(*std::min_element(num_layers.begin(), num_layers.end()) >= 1);
  for (size_t stage = 0; stage < cost.size(); ++stage) cost[stage] /= speeds[stage];
  RC_ASSERT(*std::max_element(cost.begin(), cost.end()) == least_of_all_cuts(costs, 1, stages, speeds));
}

}  // namespace
}  // namespace caravan::testing::stages_test
