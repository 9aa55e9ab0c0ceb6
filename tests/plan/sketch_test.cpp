#include "caravan/plan/sketch.h"

#include <algorithm>
#include <ctime>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "caravan/cost/hardware_costs.h"
#include "caravan/plan/sketch_queue.h"

namespace caravan::testing::sketch_test {
namespace {

constexpr int kRanks = 16;

Recipe wide_recipe() {
  return load_recipe(
      "", {"model.kind=llama", "model.layers=16", "model.width=2048", "model.heads=16", "model.context=1024",
           "data.tokenizer=bytes", "precision.compute=bf16", "train.global_batch=128", "train.micro_batch=1"});
}

std::clock_t in_seconds(int seconds) { return std::clock() + seconds * CLOCKS_PER_SEC; }

TEST(Sketch, AgreesWithEstimates) {
  const Hardware hardware = preset_hardware({.device = "a100-80", .per_host = 8, .hosts = 2});
  const HardwareCosts costs(hardware);
  const Predictor predictor(hardware, costs, kRanks, 256);
  const Recipe recipe = wide_recipe();
  Sketcher sketcher(predictor, recipe);
  std::vector<LayoutSketch> all = sketcher.all(0, in_seconds(100));
  ASSERT_TRUE(sketcher.is_complete());
  EXPECT_GT(all.size(), 500U);
  std::ranges::sort(all, {}, &LayoutSketch::seconds);
  // Of each kind the best: schedules other than 1f1b differ more from the table that a sketch counts.
  std::vector<std::string> seen;
  for (const LayoutSketch& sketch : all) {
    if (!sketch.schedule.empty() && sketch.schedule != "1f1b") continue;
    const std::string kind = sketch.technique + sketch.schedule + sketch.split.recompute;
    if (std::ranges::find(seen, kind) != seen.end()) continue;
    seen.push_back(kind);
    SCOPED_TRACE(kind);
    const auto whole = sketcher.recipe_of(sketch);
    ASSERT_TRUE(whole);
    const Prediction prediction = predictor.estimate(*whole);
    // Stages wait for each other in more ways than a table knows, and keep what is gathered for several micro-batches:
    // an estimate tells the queue.
    EXPECT_NEAR(sketch.seconds, prediction.seconds, (sketch.pp > 1 ? 0.35 : 0.1) * prediction.seconds);
    const double tolerance = sketch.pp > 1 ? 0.7 : 0.2;
    EXPECT_NEAR(sketch.bytes, static_cast<double>(prediction.memory.total()),
                tolerance * static_cast<double>(prediction.memory.total()));
  }
  EXPECT_GE(seen.size(), 12U);
}

LayoutSketch sketch_of(const std::string& technique, const std::string& schedule, double seconds, double bytes) {
  return {.split = {}, .pp = 1, .schedule = schedule, .technique = technique, .seconds = seconds, .bytes = bytes};
}

TEST(SketchQueue, LearnsFromEstimates) {
  SketchQueue queue({sketch_of("ddp", "a", 1, 10), sketch_of("ddp", "a", 2, 10), sketch_of("zero1", "a", 3, 10),
                     sketch_of("ddp", "", 4, 10), sketch_of("ddp", "", 3.5, 30)},
                    20);
  const LayoutSketch* first = queue.take();
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(first->seconds, 1);
  Prediction slower{.seconds = 2};
  slower.memory[MemoryKind::parameters] = 30;
  queue.learn(*first, slower);
  // Of the same schedule 3 s are 6 now. Its 10 bytes are 30, also with another technique until one of these is known.
  EXPECT_EQ(queue.take()->seconds, 4);
  const LayoutSketch other = sketch_of("zero1", "a", 3, 10);
  EXPECT_EQ(queue.seconds(other), 6);
  EXPECT_EQ(queue.bytes(other), 30);
  EXPECT_EQ(queue.bytes(sketch_of("zero1", "b", 3, 10)), 30);
  EXPECT_EQ(queue.seconds(sketch_of("zero1", "b", 3, 10)), 3);
  EXPECT_EQ(queue.bytes(sketch_of("zero1", "", 3, 10)), 10) << "without stages nothing was learned";
  Prediction known{.seconds = 6};
  known.memory[MemoryKind::parameters] = 15;
  queue.learn(other, known);
  EXPECT_EQ(queue.bytes(other), 15);
  EXPECT_EQ(queue.bytes(sketch_of("zero2", "a", 3, 10)), 15) << "the least that was learned";
  EXPECT_EQ(queue.take()->technique, "zero1") << "it fits again";
  EXPECT_EQ(queue.take([](const LayoutSketch& one) { return one.seconds > 4; }), nullptr);
  EXPECT_EQ(queue.take()->seconds, 2);
  EXPECT_EQ(queue.take()->bytes, 30);
  EXPECT_EQ(queue.take(), nullptr);
}

}  // namespace
}  // namespace caravan::testing::sketch_test
