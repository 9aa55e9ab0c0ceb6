#include "caravan/train/model/micro_batch.h"

#include <gmock/gmock.h>

#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/comm/backends/shared/thread_ranks.h"
#include "caravan/train/model/rehearse.h"
#include "tests/data/support.h"
#include "tests/needs.h"

namespace caravan::testing::micro_batch_test {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kVocabulary = 2048;

/// On `num_ranks` ranks with `limit` bytes each.
MemoryPlan plan_of(const Recipe& recipe, int64_t limit, int64_t before = 0, int num_ranks = 2) {
  return plan_memory(recipe, num_ranks, limit, before, [&](int64_t micro_batch) {
    const Recipe resolved = with_micro_batch(recipe, micro_batch);
    return fullest_of([&] { return rehearse_telling_ranks(resolved, kVocabulary, num_ranks); });
  });
}
int64_t peak_with(const Recipe& recipe, int64_t micro_batch) {
  return plan_of(with_micro_batch(recipe, micro_batch), 0).peak_bytes();
}

Recipe with(const std::vector<std::string>& overrides) {
  needs_chosen(overrides);
  return parse_recipe("", "test", overrides);
}

TEST(MicroBatch, AutoIsTheLargestThatFits) {
  const Recipe recipe = with({"train.global_batch=24"});
  const MemoryPlan roomy = plan_of(recipe, int64_t{1} << 40);
  EXPECT_TRUE(roomy.is_chosen);
  EXPECT_EQ(roomy.micro_batch, 12);
  const int64_t limit = peak_with(recipe, 4) * 10 / 8 + 1;
  const MemoryPlan tight = plan_of(recipe, limit);
  EXPECT_EQ(tight.micro_batch, 4);
  EXPECT_LE(tight.peak_bytes(), limit * 8 / 10);
  EXPECT_EQ(plan_of(recipe, 0).micro_batch, 12) << "no limit is known";
}

TEST(MicroBatch, FewPeaksAreEvaluated) {
  const Recipe recipe = with({"train.global_batch=7200"});
  int asked = 0;
  const auto peak_of = [&](int64_t micro_batch) {
    ++asked;
    RankPeak peak;
    peak.peak[MemoryKind::other] = micro_batch;
    return peak;
  };
  EXPECT_EQ(plan_memory(recipe, 2, 125, 0, peak_of).micro_batch, 100);
  EXPECT_LE(asked, 8) << "3600 has 45 divisors";
  asked = 0;
  EXPECT_EQ(plan_memory(recipe, 2, 10'000, 0, peak_of).micro_batch, 3600);
  EXPECT_EQ(asked, 1);
}

TEST(MicroBatch, RecomputeLetsMoreFit) {
  const auto chosen = [](const std::string& recompute, int64_t limit) {
    return plan_of(
        with({"train.global_batch=24", "model.context=512", "model.dropout=0.1", "memory.recompute=" + recompute}),
        limit);
  };
  const int64_t limit = chosen("none", 0).peak_bytes();  // of 12 at once, of which 80 % is used
  EXPECT_EQ(chosen("none", limit).micro_batch, 6);
  EXPECT_EQ(chosen("full", limit).micro_batch, 12);
  EXPECT_EQ(chosen("[\"blocks.*\"]", 0).peak_bytes(), chosen("full", 0).peak_bytes());
}

TEST(MicroBatch, ANumberIsUsedIfAnyCanFit) {
  const Recipe recipe = with({"train.global_batch=24", "train.micro_batch=6"});
  const int64_t states = plan_of(recipe, 0).fullest.peak.state();
  const MemoryPlan plan = plan_of(recipe, states);
  EXPECT_FALSE(plan.is_chosen);
  EXPECT_EQ(plan.micro_batch, 6);
  EXPECT_EQ(plan_of(with({"train.global_batch=12", "train.micro_batch=0"}), states).micro_batch, 6);
  for (const char* number : {"1", "6", "0"}) {
    const Recipe other = with({"train.global_batch=24", std::string("train.micro_batch=") + number});
    EXPECT_THAT(message_of<ResourceError>([&] { plan_of(other, states - 1); }),
                AllOf(HasSubstr("a rank needs about "), HasSubstr("with 1 sequence at a time"),
                      HasSubstr("train.micro_batch=" + std::string(number)), HasSubstr("lower model.layers")));
  }
}

TEST(MicroBatch, ThePlanSaysHowCloseTheLimitIs) {
  const Recipe recipe = with({"train.global_batch=24", "train.micro_batch=6"});
  const auto peak = static_cast<double>(plan_of(recipe, 0).peak_bytes());
  const auto text = [&](const Recipe& of, double limit) {
    return memory_text(plan_of(of, static_cast<int64_t>(limit)));
  };
  // What the library that multiplies takes differs by processor, and so does the event.
  EXPECT_THAT(
      text(recipe, 0),
      ContainsRegex("^[0-9.]+ MiB per rank at most, rank [01] in (forward|backward) [a-z0-9.]+ of micro-batch"));
  EXPECT_THAT(text(recipe, peak / 0.79), Not(HasSubstr(": ")));
  EXPECT_THAT(text(recipe, peak / 0.81), EndsWith(": close to the limit"));
  EXPECT_THAT(text(recipe, peak * 0.99), EndsWith(": it may not fit; lower train.micro_batch, or set it to \"auto\""));
  const Recipe one = with({"train.global_batch=24", "train.micro_batch=1"});
  EXPECT_THAT(text(one, static_cast<double>(plan_of(one, 0).peak_bytes()) * 0.99),
              EndsWith("it may not fit; use a smaller model or context"));
}

TEST(MicroBatch, AutoKeepsTheNumberOfTheCheckpointIfItFits) {
  const Recipe recipe = with({"train.global_batch=24"});
  const auto chosen = [&](int64_t before, int64_t limit) { return plan_of(recipe, limit, before).micro_batch; };
  const int64_t roomy = int64_t{1} << 40;
  EXPECT_EQ(chosen(4, roomy), 4);
  EXPECT_EQ(chosen(4, 0), 4) << "no limit is known";
  EXPECT_EQ(chosen(5, roomy), 12) << "does not divide the 12 sequences of a rank";
  EXPECT_EQ(chosen(24, roomy), 12);
  const int64_t six_fit = peak_with(recipe, 6) + 1;
  EXPECT_LT(chosen(0, six_fit), 6) << "what is chosen anew leaves a reserve";
  EXPECT_EQ(chosen(6, six_fit), 6);
  EXPECT_EQ(chosen(12, six_fit), chosen(0, six_fit));
  EXPECT_EQ(plan_of(with({"train.micro_batch=3"}), roomy, 2).micro_batch, 3) << "not \"auto\"";
}

TEST(MicroBatch, AModelThatCannotFitIsRefusedWithWhatToLower) {
  needs({"adamw"});
  const auto refusal = [](const Recipe& recipe, int64_t limit) {
    return message_of<ResourceError>([&] { plan_of(recipe, limit); });
  };
  EXPECT_THAT(refusal(with({}), 30 << 20),
              AllOf(HasSubstr("a rank needs about "), HasSubstr("but has 30.0 MiB"), HasSubstr("lower model.layers")));
  EXPECT_THAT(refusal(with({"model.context=100000", "model.dropout=0.1"}), int64_t{1} << 30),
              HasSubstr("lower model.context"));
  EXPECT_THAT(refusal(with({"train.global_batch=1073741824"}), int64_t{1} << 30),
              HasSubstr("lower train.global_batch"));
}

/// Tensors of more bytes than there are numbers for.
TEST(MicroBatch, NoSizeOverflows) {
  const Recipe largest = with({"model.width=1048576", "model.heads=65536", "model.context=16777216",
                               "train.global_batch=1073741824", "train.micro_batch=0"});
  EXPECT_THAT(message_of<ResourceError>([&] { plan_of(largest, int64_t{1} << 30); }), HasSubstr("a rank needs about "));
}

TEST(MicroBatch, AProcessKnowsItsOwnMemory) {
  constexpr int64_t kMore = int64_t{64} << 20;
  const int64_t before = anonymous_bytes();
  ASSERT_GT(before, 1 << 20);
  const std::vector<char> touched(kMore, 1);
  const int64_t grown = anonymous_bytes() - before;
  EXPECT_GE(grown, kMore * 9 / 10) << touched.back();
  EXPECT_LE(grown, kMore * 11 / 10);
}

TEST(MicroBatch, RanksOfAHostShareItsMemory) {
  const int64_t host = int64_t{8} << 30;
  EXPECT_LE(memory_share(host, 4), host / 4);
  EXPECT_GT(memory_share(host, 4), host / 8);
  EXPECT_EQ(memory_share(0, 4), 0);
  // Memory that is held and memory in use before are added.
  EXPECT_GE(resident_bytes("gloo", 2, 0, host) - resident_bytes("gloo", 2, 0, 0), host);
  EXPECT_EQ(resident_bytes("gloo", 2, host, 0) - resident_bytes("gloo", 2, 0, 0), host);
  EXPECT_EQ(resident_bytes("shm", 3, 0, 0) - resident_bytes("shm", 2, 0, 0),
            resident_bytes("shm", 4, 0, 0) - resident_bytes("shm", 3, 0, 0));
  EXPECT_LT(resident_bytes("thread", 2, 0, 0), resident_bytes("shm", 2, 0, 0)) << "nobody has started them";
  EXPECT_GT(memory_share(1000, 4), 0) << "0 would mean that the memory is unknown";
}

TEST(MicroBatch, OneRankSendsTheNumberOfTheCheckpoint) {
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
}  // namespace caravan::testing::micro_batch_test
