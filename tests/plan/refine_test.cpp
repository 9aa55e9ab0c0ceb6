#include "caravan/plan/refine.h"

#include <algorithm>
#include <ctime>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "caravan/cost/hardware_costs.h"

namespace caravan::testing::refine_test {
namespace {

Recipe recipe_of(std::vector<std::string> keys) {
  const std::vector<std::string> wide{"model.kind=llama",       "model.layers=12",      "model.width=1024",
                                      "model.heads=8",          "model.context=1024",   "data.tokenizer=bytes",
                                      "precision.compute=bf16", "train.global_batch=16"};
  keys.insert(keys.begin(), wide.begin(), wide.end());
  return load_recipe("", keys);
}

std::vector<Recipe> refined(const Predictor& predictor, const Recipe& recipe, std::vector<LayoutSketch> only = {}) {
  Sketcher sketcher(predictor, recipe);
  const auto room = static_cast<double>(predictor.room_bytes(recipe));
  std::vector<LayoutSketch> all = sketcher.all(room, std::clock() + 100 * CLOCKS_PER_SEC);
  if (!only.empty()) {
    std::erase_if(all, [&](const LayoutSketch& one) {
      return one.pp != only[0].pp || one.schedule != only[0].schedule ||
             one.split.micro_batch != only[0].split.micro_batch;
    });
  }
  std::vector<Recipe> found;
  for (PlannedLayout& one : refined_layouts(
           sketcher, SketchQueue(std::move(all), room), predictor,
           {.may_choose = [](const Recipe&) { return true; }, .end = std::clock() + 100 * CLOCKS_PER_SEC})) {
    EXPECT_TRUE(one.prediction.fits());
    found.push_back(std::move(one.recipe));
  }
  return found;
}

TEST(Refine, RecomputesNoMoreLayersThanItMust) {
  Hardware hardware = preset_hardware({.device = "a100-80", .per_host = 1});
  const Recipe kept = recipe_of({"train.micro_batch=16"});
  const Recipe again = recipe_of({"train.micro_batch=16", "memory.recompute=full"});
  const HardwareCosts wide_costs(hardware);
  const Predictor wide(hardware, wide_costs, 1, 256);
  const Prediction of_kept = wide.predict(kept), of_again = wide.predict(again);
  HardwareDevice& device = hardware.devices.front();
  device.memory_bytes = device.reserved_bytes + (of_kept.memory.total() + of_again.memory.total()) / 2;
  const HardwareCosts costs(hardware);
  const Predictor predictor(hardware, costs, 1, 256);
  const std::vector<Recipe> found =
      refined(predictor, kept, {{.split = {.micro_batch = 16}, .pp = 1, .schedule = "", .technique = "ddp"}});
  ASSERT_FALSE(found.empty());
  const Setting& recompute = found.front().memory.recompute;
  ASSERT_TRUE(recompute.reads("modules"));
  const Prediction prediction = predictor.predict(found.front());
  EXPECT_TRUE(prediction.fits());
  EXPECT_GT(prediction.seconds, of_kept.seconds);
  EXPECT_LT(prediction.seconds, of_again.seconds);
  // Half of the bytes that recomputation frees: about half of the layers.
  EXPECT_GE(recompute.texts("modules").size(), 5U);
  EXPECT_LE(recompute.texts("modules").size(), 8U);
}

TEST(Refine, FasterDevicesGetMoreLayers) {
  Hardware hardware = preset_hardware({.device = "a100-80", .per_host = 2});
  HardwareDevice slow = hardware.devices.front();
  slow.name = slow.alias = "slow";
  for (ProductRate& rate : slow.products) rate.flops /= 3;
  hardware.devices.push_back(slow);
  hardware.hosts = {{.count = 1, .device = hardware.devices.front().alias, .devices = 1},
                    {.count = 1, .device = "slow", .devices = 1}};
  const HardwareCosts costs(hardware);
  const Predictor predictor(hardware, costs, 2, 256);
  const Recipe even = recipe_of({"mesh.pp=2", "pipeline.micro_batches=8"});
  const std::vector<Recipe> found =
      refined(predictor, even, {{.split = {.micro_batch = 2}, .pp = 2, .schedule = "1f1b", .technique = "ddp"}});
  ASSERT_FALSE(found.empty());
  const std::vector<int64_t> layers = found.front().pipeline.layers();
  ASSERT_EQ(layers.size(), 2U);
  EXPECT_EQ(layers[0] + layers[1], 12);
  EXPECT_GE(layers[0], 8);
  EXPECT_LT(predictor.predict(found.front()).seconds, 0.8 * predictor.predict(even).seconds);
}

}  // namespace
}  // namespace caravan::testing::refine_test
