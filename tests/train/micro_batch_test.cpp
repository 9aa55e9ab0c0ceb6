#include "caravan/train/micro_batch.h"

#include <gmock/gmock.h>

#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/comm/shared/thread_ranks.h"
#include "tests/data/support.h"

namespace caravan::micro_batch_test {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
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

TEST(MicroBatch, RecomputeLetsMoreFit) {
  const auto chosen = [](const std::string& recompute, double limit) {
    const Recipe recipe =
        with({"train.global_batch=24", "model.context=512", "model.dropout=0.1", "memory.recompute=" + recompute});
    return plan_memory(recipe, kVocabulary, 2, static_cast<int64_t>(limit));
  };
  const double limit = chosen("none", 0).peak_bytes;  // of 12 at once, of which 80 % is used
  EXPECT_EQ(chosen("none", limit).shape.sequences, 6);
  EXPECT_EQ(chosen("selective", limit).shape.sequences, 12);
  EXPECT_EQ(chosen("full", limit).shape.sequences, 12);
  EXPECT_EQ(chosen("[\"blocks.*\"]", 0).peak_bytes, chosen("full", 0).peak_bytes);
}

TEST(MicroBatch, ANumberIsTakenAsItIsIfAnyCanFit) {
  const Recipe recipe = with({"train.global_batch=24", "train.micro_batch=6"});
  const auto states = static_cast<int64_t>(state_bytes(plan_memory(recipe, kVocabulary, 2, 0).shape));
  const MemoryPlan plan = plan_memory(recipe, kVocabulary, 2, states);
  EXPECT_FALSE(plan.is_chosen);
  EXPECT_EQ(plan.shape.sequences, 6);
  EXPECT_EQ(plan_memory(with({"train.micro_batch=0"}), kVocabulary, 2, states).shape.sequences, 6);
  for (const char* number : {"1", "6", "0"}) {
    const Recipe other = with({"train.global_batch=24", std::string("train.micro_batch=") + number});
    EXPECT_THAT(message_of<ResourceError>([&] { plan_memory(other, kVocabulary, 2, states - 1); }),
                AllOf(HasSubstr("a rank needs about"), HasSubstr("with 1 sequence at a time"),
                      HasSubstr("train.micro_batch=" + std::string(number)), HasSubstr("lower model.layers")));
  }
}

TEST(MicroBatch, ThePlanSaysHowCloseTheLimitIs) {
  const Recipe recipe = with({"train.global_batch=24", "train.micro_batch=6"});
  const double peak = plan_memory(recipe, kVocabulary, 2, 0).peak_bytes;
  const auto text = [&](const Recipe& of, double limit) {
    return memory_text(plan_memory(of, kVocabulary, 2, static_cast<int64_t>(limit)));
  };
  EXPECT_THAT(text(recipe, 0), AllOf(HasSubstr("about "), EndsWith("B per rank")));
  EXPECT_THAT(text(recipe, peak / 0.79), EndsWith(" per rank"));
  EXPECT_THAT(text(recipe, peak / 0.81), EndsWith(" per rank: close to the limit"));
  EXPECT_THAT(text(recipe, peak * 0.99), EndsWith("per rank: it may not fit; lower train.micro_batch, or set it to "
                                                  "\"auto\""));
  const Recipe one = with({"train.global_batch=24", "train.micro_batch=1"});
  EXPECT_THAT(text(one, plan_memory(one, kVocabulary, 2, 0).peak_bytes * 0.99),
              EndsWith("it may not fit; use a smaller model or context"));
}

TEST(MicroBatch, AutoKeepsTheNumberOfTheCheckpointIfItFits) {
  const Recipe recipe = with({"train.global_batch=24"});
  const auto chosen = [&](int64_t before, int64_t limit) {
    return plan_memory(recipe, kVocabulary, 2, limit, before).shape.sequences;
  };
  const int64_t roomy = int64_t{1} << 40;
  EXPECT_EQ(chosen(4, roomy), 4);
  EXPECT_EQ(chosen(4, 0), 4) << "no limit is known";
  EXPECT_EQ(chosen(5, roomy), 12) << "does not divide the 12 sequences of a rank";
  EXPECT_EQ(chosen(24, roomy), 12);
  MemoryShape six = plan_memory(recipe, kVocabulary, 2, roomy).shape;
  six.sequences = 6;
  const auto six_fit = static_cast<int64_t>(peak_bytes(six)) + 1;
  EXPECT_LT(chosen(0, six_fit), 6) << "what is chosen anew leaves a reserve";
  EXPECT_EQ(chosen(6, six_fit), 6);
  EXPECT_EQ(chosen(12, six_fit), chosen(0, six_fit));
  EXPECT_EQ(plan_memory(with({"train.micro_batch=3"}), kVocabulary, 2, roomy, 2).shape.sequences, 3) << "not \"auto\"";
}

TEST(MicroBatch, WhatFitsInNoWayIsRefusedWithWhatToLower) {
  const auto refusal = [](const Recipe& recipe, int64_t limit) {
    return message_of<ResourceError>([&] { plan_memory(recipe, kVocabulary, 2, limit); });
  };
  EXPECT_THAT(refusal(with({}), 30 << 20),
              AllOf(HasSubstr("a rank needs about"), HasSubstr("but has 30.0 MiB"), HasSubstr("lower model.layers")));
  EXPECT_THAT(refusal(with({"model.context=100000", "model.dropout=0.1"}), int64_t{1} << 30),
              HasSubstr("lower model.context"));
  EXPECT_THAT(refusal(with({"train.global_batch=1073741824"}), int64_t{1} << 30),
              HasSubstr("lower train.global_batch"));
}

TEST(MicroBatch, RanksOfAHostShareItsMemory) {
  const int64_t host = int64_t{8} << 30;
  EXPECT_LE(memory_share(host, 4), host / 4);
  EXPECT_GT(memory_share(host, 4), host / 8);
  EXPECT_EQ(memory_share(0, 4), 0);
  EXPECT_GT(memory_share(1000, 4), 0) << "0 would mean that the memory is unknown";
}

TEST(MicroBatch, OneRankTellsTheOthersTheNumberOfTheCheckpoint) {
  run_thread_ranks(3, [](const std::shared_ptr<Communicator>& world) {
    Recipe recipe = with({});
    resolve_micro_batch(recipe, kVocabulary, *world, world->rank() == 0 ? 2 : 0);
    EXPECT_EQ(recipe.train.micro_batch, 2);
  });
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
}  // namespace caravan::micro_batch_test
