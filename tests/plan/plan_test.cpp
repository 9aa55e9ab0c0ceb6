#include <algorithm>
#include <ctime>
#include <gmock/gmock.h>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/cost/hardware.h"
#include "caravan/cost/hardware_costs.h"
#include "caravan/plan/checkpoint_size.h"
#include "caravan/plan/neighbours.h"
#include "caravan/plan/predict.h"
#include "caravan/plan/search.h"
#include "caravan/plan/sketch.h"
#include "caravan/plan/twins.h"
#include "caravan/recipe/recipe.h"
#include "caravan/techniques/offload/kinds.h"

namespace caravan::testing {
namespace {

using Keys = std::vector<std::string>;

constexpr int kPerHost = 2;

/// Simple sums: 1 TFLOP/s, 100 GB/s of memory, links of 10 GB/s in a host and `link` between hosts.
class PlainCosts final : public StepCosts {
 public:
  explicit PlainCosts(double link) : link_(link) {}
  double seconds(const KernelWork& work, int) const override {
    return std::max(work.flops() / 1e12, static_cast<double>(work.bytes) / 1e11);
  }
  CallTime seconds(const StepTimeline::Call& call, std::span<const int> ranks) const override {
    const bool is_inside = ranks.front() / kPerHost == ranks.back() / kPerHost;
    return {1e-5 + call.sent_bytes / (is_inside ? 1e10 : link_), 0};
  }

 private:
  double link_;
};

Hardware hosts(int64_t count, int64_t memory_bytes) {
  Hardware hardware;
  hardware.name = "hosts of a test";
  hardware.devices = {{.name = "device", .memory_bytes = memory_bytes}};
  hardware.devices[0].products = {{.dtype = "fp32", .peak_flops = 1e12, .flops = 1e12},
                                  {.dtype = "bf16", .peak_flops = 1e12, .flops = 1e12}};
  hardware.devices[0].host_bytes_per_second = 2.5e10;
  hardware.hosts = {{.count = count, .device = "device", .devices = kPerHost}};
  hardware.levels = {{.name = "host", .devices = kPerHost, .bytes_per_second = 1e10},
                     {.name = "cluster", .devices = count * kPerHost, .bytes_per_second = 1e9}};
  return hardware;
}

Recipe recipe_of(Keys keys) {
  const Keys small{"model.layers=8",       "model.width=64",  "model.heads=4",         "model.context=64",
                   "data.tokenizer=bytes", "model.dropout=0", "train.global_batch=64", "train.micro_batch=4"};
  keys.insert(keys.begin(), small.begin(), small.end());
  return load_recipe("", keys);
}

TEST(Predict, FewLayersAndMicroBatchesTellOfAll) {
  const Hardware hardware = hosts(4, int64_t{1} << 34);
  const PlainCosts costs(1e9);
  const std::vector<Keys> cases{
      {"data_parallel.technique=ddp"},
      {"data_parallel.technique=zero3", "model.layers=16"},
      {"mesh.tp=2", "data_parallel.technique=zero1"},
      {"memory.recompute=full"},
      {"model.kind=llama", "precision.compute=bf16"},
      {"mesh.pp=2", "pipeline.micro_batches=16", "offload.optimizer=host"},
      {"mesh.pp=2", "pipeline.micro_batches=16"},
      {"mesh.pp=4", "pipeline.micro_batches=32", "data_parallel.technique=zero1"},
      {"mesh.pp=2", "pipeline.schedule=zb-h1", "pipeline.micro_batches=16"},
      {"mesh.pp=2", "mesh.tp=2", "pipeline.schedule=interleaved", "pipeline.micro_batches=16"}};
  for (Keys keys : cases) {
    SCOPED_TRACE(::testing::PrintToString(keys));
    keys.insert(keys.begin(), "model.width=1024");  // else small messages are joined, across layers
    if (keys[1].starts_with("mesh.pp")) keys.emplace_back("train.micro_batch=auto");
    const Recipe recipe = recipe_of(keys);
    const Predictor predictor(hardware, costs, 8, 256);
    const Prediction whole = predictor.predict(recipe);
    const Prediction estimate = predictor.estimate(recipe);
    EXPECT_NEAR(estimate.seconds, whole.seconds, 1e-3 * whole.seconds);
    EXPECT_NEAR(estimate.computes, whole.computes, 1e-3 * whole.computes);
    EXPECT_NEAR(static_cast<double>(estimate.memory.total()), static_cast<double>(whole.memory.total()),
                1e-2 * static_cast<double>(whole.memory.total()));
    EXPECT_GT(whole.utilisation, 0);
    EXPECT_LT(whole.utilisation, 1);
  }
}

TEST(Predict, AStepTakesWhatItsKernelsAndCallsTake) {
  const Hardware hardware = hosts(1, int64_t{1} << 34);
  const Recipe recipe = recipe_of({"train.micro_batch=64", "optimizer.kind=sgd"});
  const Prediction one = Predictor(hardware, PlainCosts(1e9), 1, 256).predict(recipe);
  EXPECT_DOUBLE_EQ(one.seconds, one.computes);  // one rank waits for nobody
  // The products of the model, forward and backward. Fused attention leaves out the keys that a query does not see, and
  // computes the scores again in its backward: 7 products of half of them instead of 6 of all.
  ModelConfig model = recipe.model;
  model.vocabulary = 256;
  const double attention = 8 * 2.0 * 64 * 64;  // of a token: layers, for each product 2 length width
  const double flops = model.flops_per_token(64) - 6 * attention + 7 * attention / 2;
  EXPECT_NEAR(one.of_products, flops * 64 * 64 / 1e12, 1e-2 * one.of_products);
}

TEST(Predict, OffloadTakesTheTimeOfItsLinkAndHost) {
  const Keys keys{"train.micro_batch=64", "model.width=256"};
  Keys offload = keys;
  offload.insert(offload.end(), {"offload.optimizer=host", "offload.gradients=host", "offload.parameters=host"});
  Hardware hardware = hosts(1, int64_t{1} << 34);
  hardware.devices[0].host_bytes_per_second = 1e12;
  const PlainCosts costs(1e9);
  const auto seconds = [&](const Keys& of) { return Predictor(hardware, costs, 1, 256).predict(recipe_of(of)); };
  const Prediction without = seconds(keys), fast = seconds(offload);
  EXPECT_EQ(without.on_host, 0);
  EXPECT_GT(fast.on_host, 0);
  EXPECT_LT(fast.memory.total(), without.memory.total());
  EXPECT_FALSE(fast.waits.contains("host"));
  hardware.devices[0].host_bytes_per_second = 1e6;
  const Prediction slow = seconds(offload);
  EXPECT_GT(slow.waits.at("host"), slow.computes);
  // Parameters are loaded twice, and gradients stored once: 8 layers of 12 x 256 x 256 and more.
  EXPECT_GE(slow.seconds, 2 * 4 * 8 * 12 * 256.0 * 256 / 1e6);
}

TEST(Predict, ABubbleIsThatOfThePipeline) {
  const Hardware hardware = hosts(2, int64_t{1} << 34);
  const PlainCosts costs(1e12);
  const Predictor predictor(hardware, costs, 4, 256);
  const Keys wide{"model.width=512", "model.heads=8",         "model.context=128",
                  "mesh.pp=4",       "train.global_batch=32", "train.micro_batch=auto"};
  for (const int64_t micro_batches : {4, 16}) {
    Keys keys = wide;
    keys.push_back("pipeline.schedule=gpipe");
    keys.push_back("pipeline.micro_batches=" + std::to_string(micro_batches));
    const Prediction one = predictor.predict(recipe_of(keys));
    // Huang et al., GPipe: (p - 1) / (m + p - 1) if all stages take equal times.
    EXPECT_NEAR(one.bubble / one.seconds, 3.0 / static_cast<double>(micro_batches + 3), 0.06) << micro_batches;
  }
  EXPECT_EQ(predictor.predict(recipe_of({})).bubble, 0) << "no pipeline";
}

TEST(CheckpointSize, IsThatOfParametersAndMoments) {
  const std::vector<Keys> cases{
      {}, {"data_parallel.technique=zero3"}, {"mesh.pp=2", "pipeline.micro_batches=4"}, {"mesh.tp=4"}};
  for (const auto& [optimizer, bytes] : {std::pair("adamw", 12), std::pair("sgd", 4)}) {
    for (Keys keys : cases) {
      keys.push_back(std::string("optimizer.kind=") + optimizer);
      const Recipe recipe = recipe_of(keys);
      ModelConfig model = recipe.model;
      model.vocabulary = 256;
      const auto all = static_cast<double>(bytes * model.num_parameters());
      const CheckpointSize size = checkpoint_size(recipe, 256, 8);
      EXPECT_NEAR(static_cast<double>(size.total_bytes), all, 0.02 * all)
          << optimizer << " " << keys.front();  // cut at rows
      EXPECT_GE(8 * size.rank_bytes, size.total_bytes);
      EXPECT_LT(static_cast<double>(8 * size.rank_bytes), 1.5 * all) << "replicas share the work";
    }
  }
}

TEST(Twins, DifferInMinorKeysAndTakeEquallyLong) {
  const auto row = [](const Keys& keys, double seconds) {
    const Recipe recipe = recipe_of(keys);
    PlannedLayout layout{recipe, layout_text(recipe, 8), {}};
    layout.prediction.seconds = seconds;
    // What recomputes or offloads keeps less.
    const int64_t saved = (recipe.memory.recompute.is_none() ? 0 : 1) + (is_offload_used(recipe.offload) ? 1 : 0);
    layout.prediction.memory[MemoryKind::parameters] = 100 - 10 * saved;
    layout.prediction.host_bytes = is_offload_used(recipe.offload) ? 50 : 0;
    return layout;
  };
  std::vector<PlannedLayout> rows{row({"offload.optimizer=host"}, 1),
                                  row({"offload.optimizer=host", "offload.gradients=host"}, 1.005),
                                  row({}, 1.006),
                                  row({"data_parallel.technique=zero1"}, 1.007),
                                  row({"memory.recompute=selective"}, 1.008),
                                  row({"memory.recompute=full"}, 1.009),
                                  row({"mesh.tp=2"}, 1.009),
                                  row({"offload.optimizer=host", "offload.activations=host"}, 1.02),
                                  row({"mesh.tp=2", "memory.recompute=full"}, 1.03),
                                  row({"mesh.tp=4"}, 1.03)};
  rows.insert(rows.begin() + 7, row({"mesh.tp=2", "train.micro_batch=8"}, 1.02));
  EXPECT_EQ(drop_twins(rows, 8), 4U);
  std::vector<double> left;
  for (const PlannedLayout& each : rows) left.push_back(each.prediction.seconds);
  EXPECT_EQ(left, (std::vector<double>{1, 1.006, 1.007, 1.008, 1.009, 1.03, 1.03}))
      << "of those that offload, and of those that recompute, the fastest; what is slower and saves no memory goes";
}

TEST(Search, SlowLinksBetweenHostsDecide) {
  const Hardware hardware = hosts(2, int64_t{1} << 34);
  const Recipe recipe = recipe_of(
      {"model.layers=4", "model.width=256", "model.context=16", "train.micro_batch=8", "data_parallel.technique=ddp"});
  const auto best = [&](double link) {
    const PlainCosts costs(link);
    const SearchResult result =
        search_layouts(recipe, Predictor(hardware, costs, 4, 256), {.seconds = 60, .most_rows = 3});
    EXPECT_TRUE(result.fits());
    EXPECT_TRUE(result.own);
    for (const PlannedLayout& layout : result.best) {
      const double margin = is_offload_used(layout.recipe.offload) ? 0.9 : 0.98;  // which offload has to gain
      EXPECT_GE(layout.prediction.seconds, margin * result.best.front().prediction.seconds);
      const Prediction estimate = Predictor(hardware, costs, 4, 256).estimate(layout.recipe);
      EXPECT_NEAR(estimate.seconds, layout.prediction.seconds, 0.01 * layout.prediction.seconds) << layout.text;
    }
    EXPECT_LE(result.best.front().prediction.seconds, 1.01 * result.own->prediction.seconds);
    return result.best.front();
  };
  EXPECT_FALSE(best(1e10).recipe.pipeline.is_used()) << "all links are fast: no bubble";
  // Gradients of all parameters are too slow: stages send activations alone.
  EXPECT_TRUE(best(1e6).recipe.pipeline.is_used());
}

TEST(Search, TriesAllDivisorsOfTheRows) {
  const Recipe recipe = recipe_of({"model.layers=2", "train.global_batch=48", "train.micro_batch=2"});
  const PlainCosts costs(1e10);
  const Hardware hardware = hosts(1, int64_t{1} << 34);
  const Predictor predictor(hardware, costs, 2, 256);
  Sketcher sketcher(predictor, recipe);
  std::set<int64_t> sizes;
  for (const LayoutSketch& one : sketcher.all(0, std::clock() + 60 * CLOCKS_PER_SEC)) {
    if (one.pp == 1 && one.split.ranks() == 1) sizes.insert(one.split.micro_batch);
  }
  EXPECT_EQ(sizes, (std::set<int64_t>{1, 2, 3, 4, 6, 8, 12})) << "of 24 rows of a rank, up to 16";
  std::set<int64_t> near;
  for (const Neighbour& one : neighbours(recipe, 2, /*is_auto=*/false)) {
    if (one.choice.starts_with("train.micro_batch=")) near.insert(one.recipe.train.micro_batch);
  }
  EXPECT_EQ(near, (std::set<int64_t>{1, 3, 4}));
}

TEST(Search, ARecipeThatIsSplitDoesNotNarrowOtherLayouts) {
  const Recipe recipe =
      recipe_of({"model.kind=llama", "moe.experts=4", "mesh.ep=2", "model.layers=2", "train.micro_batch=auto"});
  const PlainCosts costs(1e10);
  const Hardware hardware = hosts(1, int64_t{1} << 34);
  const Predictor predictor(hardware, costs, 2, 256);
  Sketcher sketcher(predictor, recipe);
  const std::vector<LayoutSketch> all = sketcher.all(0, std::clock() + 60 * CLOCKS_PER_SEC);
  const auto least = [&](int64_t ep) {
    int64_t found = 0;
    for (const LayoutSketch& one : all) {
      if (one.split.ep == ep && (found == 0 || one.split.micro_batch < found)) found = one.split.micro_batch;
    }
    return found;
  };
  EXPECT_EQ(least(1), 1);
  EXPECT_EQ(least(2), 2) << "a row of each rank that shares experts";
  // 3 ranks are legal although 2 do not divide them.
  EXPECT_TRUE(has_legal_degrees(recipe_of({"mesh.cp=2", "train.global_batch=12", "model.layers=2"}), 3));
  EXPECT_FALSE(has_legal_degrees(recipe_of({"train.global_batch=16", "model.layers=2"}), 7));
}

/// Half of the second stage's devices are three times slower: they decide, as if all of them were.
TEST(Predict, TheSlowestDeviceOfAStageDecides) {
  const auto hardware_of = [](int64_t fast_hosts, int64_t slow_hosts) {
    Hardware hardware = preset_hardware({.device = "a100-80", .per_host = 2, .hosts = 4});
    HardwareDevice slow = hardware.devices.front();
    slow.name = slow.alias = "slow";
    for (ProductRate& rate : slow.products) rate.flops /= 3;
    hardware.devices.push_back(slow);
    const std::string fast = hardware.hosts.front().device;
    hardware.hosts = {{.count = fast_hosts, .device = fast, .devices = 2},
                      {.count = slow_hosts, .device = "slow", .devices = 2}};
    return hardware;
  };
  const auto seconds = [&](const Hardware& hardware) {
    const HardwareCosts costs(hardware);
    const Prediction one =
        Predictor(hardware, costs, 8, 256)
            .predict(recipe_of({"mesh.pp=2", "pipeline.micro_batches=8", "model.width=4096", "model.context=1024",
                                "model.heads=32", "train.micro_batch=auto", "precision.compute=bf16"}));
    EXPECT_GT(one.bubble, 0) << "stages wait for each other";
    return one.seconds;
  };
  const double mixed = seconds(hardware_of(3, 1)), slow = seconds(hardware_of(2, 2));
  EXPECT_NEAR(mixed, slow, 1e-9 * slow);
  EXPECT_GT(mixed, 1.3 * seconds(preset_hardware({.device = "a100-80", .per_host = 2, .hosts = 4})));
}

TEST(Predict, AHostHoldsWhatItsRanksOffload) {
  const auto host_bytes = [](int64_t per_host) {
    const Hardware hardware = preset_hardware({.device = "a100-80", .per_host = per_host});
    const HardwareCosts costs(hardware);
    const Prediction one = Predictor(hardware, costs, 2, 256).predict(recipe_of({"offload.optimizer=host"}));
    EXPECT_GT(one.host_bytes, 0);
    return one.host_bytes;
  };
  EXPECT_EQ(host_bytes(8), host_bytes(2));
}

TEST(Search, WhatDoesNotFitSaysByHowMuch) {
  const Recipe recipe = recipe_of({"model.layers=2"});
  const PlainCosts costs(1e9);
  const Hardware small = hosts(1, 100'000);
  const SearchResult result = search_layouts(recipe, Predictor(small, costs, 2, 256), {.seconds = 20, .most_rows = 3});
  EXPECT_FALSE(result.fits());
  ASSERT_FALSE(result.best.empty());
  const std::vector<std::string> advice = advice_of(result, 2);
  ASSERT_GE(advice.size(), 2U);
  EXPECT_THAT(advice[0], ::testing::AllOf(::testing::HasSubstr("fits 2 ranks"), ::testing::HasSubstr("97.7 KiB")));
}

TEST(Search, MemoryDecidesBeforeTime) {
  const Recipe recipe = recipe_of({"model.layers=2", "train.micro_batch=16", "data_parallel.technique=ddp"});
  const PlainCosts costs(1e10);
  const Hardware wide = hosts(1, int64_t{1} << 34);
  const SearchResult all = search_layouts(recipe, Predictor(wide, costs, 2, 256), {.seconds = 60, .most_rows = 1});
  const int64_t needs = all.best.front().prediction.memory.total();
  const Hardware narrow = hosts(1, needs / 2);
  const SearchResult some = search_layouts(recipe, Predictor(narrow, costs, 2, 256), {.seconds = 60, .most_rows = 1});
  ASSERT_TRUE(some.fits());
  EXPECT_NE(some.best.front().text, all.best.front().text);
  EXPECT_GE(some.best.front().prediction.seconds, 0.98 * all.best.front().prediction.seconds);
}

TEST(Predict, AStepWaitsForItsLink) {
  // All-reduces of all gradients, over links that take much longer than the step: a ring sends 2 (n - 1) / n of them.
  const Recipe recipe = recipe_of({"model.width=512", "data_parallel.technique=ddp", "train.micro_batch=16"});
  const Hardware hardware = hosts(2, int64_t{1} << 34);
  const double parameters = [&] {
    ModelConfig model = recipe.model;
    model.vocabulary = 256;
    return static_cast<double>(model.num_parameters());
  }();
  for (const double link : {1e6, 1e7}) {
    const Prediction one = Predictor(hardware, PlainCosts(link), 4, 256).predict(recipe);
    const double sum = 2 * 3 / 4.0 * 4 * parameters / link;
    EXPECT_NEAR(one.waits.at("dp"), sum, 0.03 * sum) << link;
  }
}

TEST(Predict, MoreRanksThanDevicesAreRefused) {
  const Hardware hardware = hosts(1, 1 << 20);
  EXPECT_THROW(Predictor(hardware, PlainCosts(1e9), 5, 256), UsageError);
}

}  // namespace
}  // namespace caravan::testing
