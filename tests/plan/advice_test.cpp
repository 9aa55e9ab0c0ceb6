// Sentences of a plan about its hardware.
#include <algorithm>
#include <gmock/gmock.h>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "caravan/plan/hardware_advice.h"
#include "caravan/plan/plan_text.h"
#include "tests/plan/place.h"

namespace caravan::testing::advice_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

SearchResult result_of(const Place& place, const Recipe& own, const std::vector<Recipe>& recipes) {
  SearchResult result;
  result.own = place.layout(own);
  for (const Recipe& recipe : recipes) result.estimated.push_back(place.layout(recipe));
  std::ranges::sort(result.estimated, {}, [](const PlannedLayout& one) { return one.prediction.seconds; });
  result.best = {result.estimated.front()};
  return result;
}

TEST(Advice, SaysWhatSlowLinksBetweenHostsTake) {
  const Keys keys = llama(80, 8192, 64, 22016, 64);
  const Keys more{"memory.recompute=full", "precision.gradients=bf16"};
  const auto with = [&](Keys own) {
    own.insert(own.end(), more.begin(), more.end());
    return recipe_of(keys, own);
  };
  const Recipe zero3 = with({"data_parallel.technique=zero3", "train.micro_batch=1"});
  const Recipe stages = with({"mesh.pp=8", "mesh.tp=8", "pipeline.micro_batches=16"});
  const auto hosts = [](const char* link) {
    return Place({.device = "a100-80", .per_host = 8, .hosts = 8, .link = link});
  };
  // 3 x 65.3 G elements, 63/64 of them, but for the head, which is gathered once. A stage in the middle sends 2,048 x
  // 8,192 elements for each sequence, in forward and in backward.
  const Place slow = hosts("10Gb"), fast = hosts("800Gb");
  EXPECT_THAT(
      link_advice(result_of(slow, zero3, {zero3, stages}), slow.predictor()),
      AllOf(HasSubstr("between hosts (1.25 GB/s a device) a rank of dp 64, zero3"),
            HasSubstr("192.64 B elements over dp, 385.3 GB in"), HasSubstr("2.15 B elements over pp, 4.295 GB in"),
            HasSubstr("do not shard parameters between hosts, use stages there")));
  EXPECT_EQ(link_advice(result_of(fast, zero3, {zero3, stages}), fast.predictor()), "");
  const Place one({.device = "rtx-4090", .per_host = 8});
  const Recipe small = recipe_of(llama7(8), {"data_parallel.technique=zero3", "memory.recompute=full"});
  EXPECT_EQ(link_advice(result_of(one, small, {small}), one.predictor()), "") << "one host";
}

Hardware two_kinds(const std::string& first, const std::string& second) {
  Hardware hardware = preset_hardware({.device = first, .per_host = 4, .hosts = 2, .link = "200Gb"});
  hardware.devices.push_back(*preset_device(second));
  hardware.hosts.push_back({.count = 2, .device = second, .devices = 4});
  hardware.hosts.front().count = 2;
  hardware.levels.back().devices = 16;
  return hardware;
}

TEST(Advice, LeavesSlowDevicesOut) {
  const Keys keys{"model.layers=12",   "model.width=768",       "model.heads=12",
                  "model.context=512", "train.global_batch=64", "model.vocabulary=50304"};
  const Recipe recipe = recipe_of(keys, {"train.micro_batch=2"});
  for (const auto& [first, second] : {std::pair("p100", "a100-80"), std::pair("a100-80", "p100")}) {
    const Place mixed(two_kinds(first, second));
    const SearchResult result = result_of(mixed, recipe, {recipe});
    Hardware part = mixed.hardware();
    std::erase_if(part.hosts, [](const HostKind& host) { return host.device == "p100"; });
    const Place alone(part);
    const double seconds = alone.estimate(recipe).seconds;
    EXPECT_LT(seconds, result.best.front().prediction.seconds);
    EXPECT_THAT(device_advice(result, mixed.predictor()),
                AllOf(HasSubstr("the 8 a100-80 alone take " + short_seconds(seconds) + " (dp 8, "),
                      HasSubstr("all 16 devices " + short_seconds(result.best.front().prediction.seconds))));
  }
  // A few more of nearly the same speed are worth having.
  const Place alike(two_kinds("a100-40", "a100-80"));
  EXPECT_EQ(device_advice(result_of(alike, recipe, {recipe}), alike.predictor()), "");
  Hardware near = two_kinds("a100-80", "v100-32");
  near.devices.back().products = near.devices.front().products;
  for (ProductRate& rate : near.devices.back().products) rate.flops *= 0.8;
  const Place slower(near);
  EXPECT_EQ(device_advice(result_of(slower, recipe, {recipe}), slower.predictor()), "");
  // Of three kinds the two that are alike stay.
  near.devices.push_back(*preset_device("p100"));
  near.hosts.insert(near.hosts.begin(), {.count = 2, .device = "p100", .devices = 4});
  near.levels.back().devices = 24;
  const Place three(near);
  const Recipe larger = recipe_of(keys, {"train.micro_batch=2", "train.global_batch=96"});
  EXPECT_THAT(
      device_advice(result_of(three, larger, {larger}), three.predictor()),
      AllOf(HasSubstr("the 16 a100-80, v100-32 alone take"), HasSubstr("(dp 16, "), HasSubstr("all 24 devices")));
}

TEST(Advice, NamesTheNearestLegalSizes) {
  const Keys small{"model.layers=4", "model.width=64", "model.heads=4", "model.context=32"};
  const Recipe eight = recipe_of(small, {"train.global_batch=8"});
  EXPECT_EQ(legal_advice(eight, 8), "");
  EXPECT_EQ(legal_advice(eight, 3), "") << "three stages";
  EXPECT_EQ(legal_advice(eight, 7),
            "the nearest that are legal: use 6 or 8 ranks, or use train.global_batch = 7 or 14");
  const Place seven({.device = "a100-80", .per_host = 7});
  const SearchResult result = search_layouts(eight, seven.predictor(), {.seconds = 20});
  EXPECT_THAT(advice_of(result, 7),
              ::testing::ElementsAre(AllOf(HasSubstr("no layout is legal on 7 ranks"), HasSubstr("8 / 7 is not whole"),
                                           HasSubstr("global_batch = 7"), ::testing::Not(HasSubstr("where:")))));
  EXPECT_THAT(hardware_advice(eight, result, seven.predictor()), ::testing::ElementsAre(HasSubstr("6 or 8 ranks")));
}

}  // namespace
}  // namespace caravan::testing::advice_test
