#include "caravan/train/micro_batch.h"

#include <gmock/gmock.h>

#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/comm/shared/thread_ranks.h"
#include "tests/data/support.h"

namespace caravan {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kVocabulary = 2048;

Recipe with(const std::vector<std::string>& overrides) { return parse_recipe("", "test", overrides); }

TEST(MicroBatch, AutoIsTheLargestThatFits) {
  const Recipe recipe = with({"train.global_batch=24"});
  const MemoryPlan roomy = plan_memory(recipe, kVocabulary, 2, int64_t{1} << 40);
  EXPECT_TRUE(roomy.is_chosen);
  EXPECT_EQ(roomy.shape.sequences, 12);
  MemoryShape four = roomy.shape;
  four.sequences = 4;
  const auto limit = static_cast<int64_t>(peak_bytes(four) / 0.8) + 1;
  const MemoryPlan tight = plan_memory(recipe, kVocabulary, 2, limit);
  EXPECT_EQ(tight.shape.sequences, 4);
  EXPECT_LE(tight.peak_bytes, 0.8 * static_cast<double>(limit));
  EXPECT_EQ(plan_memory(recipe, kVocabulary, 2, 0).shape.sequences, 12) << "no limit is known";
}

TEST(MicroBatch, ANumberIsTakenAsItIs) {
  const MemoryPlan plan = plan_memory(with({"train.global_batch=24", "train.micro_batch=6"}), kVocabulary, 2, 1000);
  EXPECT_FALSE(plan.is_chosen);
  EXPECT_EQ(plan.shape.sequences, 6);
  EXPECT_EQ(plan_memory(with({"train.micro_batch=0"}), kVocabulary, 2, 1000).shape.sequences, 6);
}

TEST(MicroBatch, WhatFitsInNoWayIsRefusedWithWhatToLower) {
  const auto refusal = [](const Recipe& recipe, int64_t limit) {
    return message_of<ResourceError>([&] { plan_memory(recipe, kVocabulary, 2, limit); });
  };
  EXPECT_THAT(refusal(with({}), 30 << 20),
              AllOf(HasSubstr("a rank needs about"), HasSubstr("but has 30.0 MiB"), HasSubstr("lower model.layers")));
  EXPECT_THAT(refusal(with({"model.context=100000", "model.dropout=0.1"}), int64_t{1} << 30),
              HasSubstr("lower model.context"));
}

TEST(MicroBatch, RanksOfAHostShareItsMemory) {
  const int64_t host = int64_t{8} << 30;
  EXPECT_LE(memory_share(host, 4), host / 4);
  EXPECT_GT(memory_share(host, 4), host / 8);
  EXPECT_EQ(memory_share(0, 4), 0);
  EXPECT_GT(memory_share(1000, 4), 0) << "0 would mean that the memory is unknown";
}

TEST(MicroBatch, EveryRankGetsTheSameNumberAndTheRecipeKeepsIt) {
  run_thread_ranks(3, [](const std::shared_ptr<Communicator>& world) {
    Recipe recipe = with({});
    const MemoryPlan plan = resolve_micro_batch(recipe, kVocabulary, *world);
    EXPECT_TRUE(plan.is_chosen);
    EXPECT_GT(plan.limit_bytes, 0);
    EXPECT_EQ(recipe.train.micro_batch, 4) << "the default recipe is small";
    EXPECT_THAT(to_toml(recipe), HasSubstr("micro_batch = 4\n"));
  });
  EXPECT_THAT(to_toml(with({})), HasSubstr("micro_batch = \"auto\"\n"));
}

}  // namespace
}  // namespace caravan
