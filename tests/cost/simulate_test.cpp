#include "caravan/cost/simulate.h"

#include <gmock/gmock.h>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "caravan/base/error.h"

namespace caravan::testing {
namespace {

using ::testing::HasSubstr;
using Axes = std::map<std::string, std::vector<int>>;

/// A kernel takes a second for each byte, a call one for each byte that is sent.
class ByteCosts final : public StepCosts {
 public:
  explicit ByteCosts(bool is_of_device = false) : is_of_device_(is_of_device) {}
  double seconds(const KernelWork& work, int) const override { return static_cast<double>(work.bytes); }
  CallTime seconds(const StepTimeline::Call& call, std::span<const int>) const override {
    return {call.sent_bytes, is_of_device_ ? call.sent_bytes : 0};
  }

 private:
  bool is_of_device_;
};

KernelWork kernel(int64_t seconds) { return {.what = "add", .bytes = seconds}; }
StepTimeline::Call collective(double seconds, const std::string& axis = "dp") {
  return {.axis = axis, .verb = Verb::all_reduce, .what = "gradients", .sent_bytes = seconds};
}

SimulatedStep alone(TimelineBuilder& builder, bool is_of_device = false) {
  const StepTimeline timeline = builder.take();
  const Axes axes{{"dp", {0, 1}}, {"tp", {0, 2}}};
  const RankTimeline rank{0, &timeline, &axes};
  return simulate({&rank, 1}, ByteCosts(is_of_device), /*keep_spans=*/true);
}

TEST(Simulate, CallsRunBesideKernels) {
  TimelineBuilder builder;
  builder.begin_event("backward");
  builder.add(kernel(2));
  const int32_t call = builder.begin(collective(5));
  builder.add(kernel(3));
  builder.end(call);
  const SimulatedStep step = alone(builder);
  EXPECT_EQ(step.seconds, 7);  // 2, then 5 beside 3
  EXPECT_EQ(step.ranks[0].computes, 5);
  EXPECT_EQ(step.ranks[0].exposed.at("dp"), 2);
}

TEST(Simulate, ACallThatTheDeviceComputesDelaysItsKernels) {
  TimelineBuilder builder;
  builder.begin_event("backward");
  const int32_t call = builder.begin(collective(5));
  builder.add(kernel(3));
  builder.end(call);
  EXPECT_EQ(alone(builder, /*is_of_device=*/true).seconds, 8);
}

TEST(Simulate, CallsOfOneAxisFollowEachOtherAndOthersDoNot) {
  for (const bool is_same : {true, false}) {
    TimelineBuilder builder;
    builder.begin_event("backward");
    const int32_t first = builder.begin(collective(4));
    const int32_t second = builder.begin(collective(4, is_same ? "dp" : "tp"));
    builder.end(first);
    builder.end(second);
    EXPECT_EQ(alone(builder).seconds, is_same ? 8 : 4);
  }
}

/// A pipeline of `num_stages` stages and `m` micro-batches, GPipe: F and B take `forward` and `backward`.
std::vector<StepTimeline> gpipe(int num_stages, int m, int64_t forward, int64_t backward, double message) {
  std::vector<StepTimeline> all;
  for (int stage = 0; stage < num_stages; ++stage) {
    TimelineBuilder builder;
    const auto pass = [&](bool is_forward, int micro_batch) {
      const int from = is_forward ? stage - 1 : stage + 1, to = is_forward ? stage + 1 : stage - 1;
      const auto label = [&](int receiver) {
        return (is_forward ? "activation " : "gradient ") + std::to_string(micro_batch) + " for " +
               std::to_string(receiver);
      };
      const auto call = [&](Verb verb, int peer, int receiver) {
        return builder.begin({.axis = "pp",
                              .verb = verb,
                              .what = label(receiver),
                              .sent_bytes = verb == Verb::send ? message : 0,
                              .peer = peer});
      };
      builder.begin_event(is_forward ? "forward" : "backward");
      if (from >= 0 && from < num_stages) builder.end(call(Verb::recv, from, stage));
      builder.add(kernel(is_forward ? forward : backward));
      if (to >= 0 && to < num_stages) builder.end(call(Verb::send, to, to));
    };
    for (int i = 0; i < m; ++i) pass(true, i);
    for (int i = 0; i < m; ++i) pass(false, i);
    all.push_back(builder.take());
  }
  return all;
}

SimulatedStep together(const std::vector<StepTimeline>& timelines) {
  Axes axes;
  for (size_t i = 0; i < timelines.size(); ++i) axes["pp"].push_back(static_cast<int>(i));
  std::vector<RankTimeline> ranks;
  for (size_t i = 0; i < timelines.size(); ++i) ranks.push_back({static_cast<int>(i), &timelines[i], &axes});
  return simulate(ranks, ByteCosts());
}

TEST(Simulate, APipelineHasTheBubbleOfItsSchedule) {
  for (const int stages : {1, 2, 3, 4}) {
    for (const int m : {1, 4, 7}) {
      EXPECT_EQ(together(gpipe(stages, m, 2, 3, 0)).seconds, (m + stages - 1) * 5) << stages << " " << m;
    }
  }
  EXPECT_EQ(together(gpipe(2, 1, 2, 3, 1)).seconds, 2 + 1 + 2 + 3 + 1 + 3);  // two messages on the way
}

TEST(Simulate, RanksThatWaitForEachOtherAreNamed) {
  std::vector<StepTimeline> timelines = gpipe(2, 1, 1, 1, 0);
  for (StepTimeline::Call& call : timelines[0].calls) call.what += " of another run";
  try {
    together(timelines);
    FAIL() << "no error";
  } catch (const InternalError& error) {
    EXPECT_THAT(error.what(), HasSubstr("rank 1 for recv activation 0 for 1 over pp"));
  }
}

TEST(StepTimeline, KernelsThatAreEqualAreKeptOnce) {
  TimelineBuilder builder;
  builder.begin_event("forward");
  const KernelWork product{
      .kind = KernelWork::Kind::product, .what = "mm", .dtype = "fp32", .m = 2, .n = 3, .k = 5, .bytes = 124};
  for (int i = 0; i < 3; ++i) builder.add(product);
  builder.add(kernel(7));
  const StepTimeline timeline = builder.take();
  EXPECT_EQ(timeline.kernels.size(), 2U);
  EXPECT_EQ(timeline.moments.size(), 4U);
  EXPECT_EQ(timeline.flops(), 3 * 2 * 2 * 3 * 5);
  EXPECT_EQ(timeline.bytes_of(KernelWork::Kind::memory), 7);
  KernelWork attention = product;
  attention.kind = KernelWork::Kind::attention;
  attention.products = 2;
  attention.is_causal = true;
  EXPECT_EQ(attention.flops(), product.flops());
}

}  // namespace
}  // namespace caravan::testing
