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
  struct Options {
    bool is_of_device = false;
    double launch = 0;                                   ///< of a kernel; a call has twice as much
    double slowdown = 0;                                 ///< beside calls
    double straggling = 0;                               ///< for each rank of the world
    std::map<std::string, std::vector<double>> loads{};  ///< by axis
  };
  ByteCosts() = default;
  explicit ByteCosts(Options options) : options_(std::move(options)) {}
  double seconds(const KernelWork& work, int) const override { return static_cast<double>(work.bytes); }
  CallTime seconds(const StepTimeline::Call& call, std::span<const int>) const override {
    const auto loads = options_.loads.find(call.axis);
    return {call.sent_bytes, options_.is_of_device ? call.sent_bytes : 0,
            loads == options_.loads.end() ? std::vector<double>{} : loads->second};
  }
  double launch_seconds(const KernelWork&, int) const override { return options_.launch; }
  double launch_seconds(const StepTimeline::Call&, int) const override { return 2 * options_.launch; }
  double slowdown_beside_calls() const override { return options_.slowdown; }
  double straggling(int num_ranks) const override { return num_ranks * options_.straggling; }

 private:
  Options options_;
};

KernelWork kernel(int64_t seconds) { return {.what = "add", .bytes = seconds}; }
StepTimeline::Call collective(double seconds, const std::string& axis = "dp") {
  return {.axis = axis, .verb = Verb::all_reduce, .what = "gradients", .sent_bytes = seconds};
}

SimulatedStep alone(TimelineBuilder& builder, const ByteCosts::Options& options = {}) {
  const StepTimeline timeline = builder.take();
  const Axes axes{{"dp", {0, 1}}, {"tp", {0, 2}}};
  const RankTimeline rank{0, &timeline, &axes};
  return simulate({&rank, 1}, ByteCosts(options), /*keep_spans=*/true);
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
  EXPECT_EQ(alone(builder, {.is_of_device = true}).seconds, 8);
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

/// Calls over dp and tp that begin one after the other, with kernels between, and are waited for at the end.
double two_calls(double dp, int64_t between, double tp, const ByteCosts::Options& options) {
  TimelineBuilder builder;
  builder.begin_event("backward");
  const int32_t first = builder.begin(collective(dp));
  if (between > 0) builder.add(kernel(between));
  const int32_t second = builder.begin(collective(tp, "tp"));
  builder.end(second);
  builder.end(first);
  return alone(builder, options).seconds;
}

TEST(Simulate, CallsThatNeedTheSameLinksShareThem) {
  EXPECT_EQ(two_calls(4, 0, 4, {.loads = {{"dp", {1}}, {"tp", {1}}}}), 8) << "as long as one after the other";
  EXPECT_EQ(two_calls(4, 0, 4, {.loads = {{"dp", {0, 1}}, {"tp", {1, 0}}}}), 4) << "levels do not disturb each other";
  EXPECT_EQ(two_calls(4, 0, 4, {.loads = {{"dp", {0, 1}}, {"tp", {1}}}}), 4);
  // Alone until 2, then each at half its rate until tp is through at 10; 4 of 10 seconds are left.
  EXPECT_EQ(two_calls(10, 2, 4, {.loads = {{"dp", {1}}, {"tp", {1}}}}), 14);
  // A level that is busy for half of the time of each has room for both, and for no more.
  EXPECT_EQ(two_calls(6, 0, 6, {.loads = {{"dp", {0.5}}, {"tp", {0.5}}}}), 6);
  EXPECT_EQ(two_calls(6, 0, 6, {.loads = {{"dp", {1}}, {"tp", {0.5}}}}), 9);
}

TEST(Simulate, CallsThatWaitForTheirAxisDoNotDisturbOthers) {
  TimelineBuilder builder;
  builder.begin_event("backward");
  std::vector<int32_t> calls;
  for (int i = 0; i < 3; ++i) calls.push_back(builder.begin(collective(2)));
  calls.push_back(builder.begin(collective(4, "tp")));
  for (const int32_t call : calls) builder.end(call);
  // The first two of dp run beside that of tp, one after the other, at half the rate.
  const SimulatedStep step = alone(builder, {.loads = {{"dp", {1}}, {"tp", {1}}}});
  EXPECT_EQ(step.seconds, 10);
  std::map<std::string, std::vector<std::pair<double, double>>> spans;
  for (const SimulatedStep::Span& span : step.spans) spans[span.row].emplace_back(span.begin, span.end);
  EXPECT_EQ(spans["dp"], (std::vector<std::pair<double, double>>{{0, 4}, {4, 8}, {8, 10}}));
  EXPECT_EQ(spans["tp"], (std::vector<std::pair<double, double>>{{0, 8}}));
}

TEST(Simulate, KernelsBesideCallsAreSlower) {
  TimelineBuilder builder;
  builder.begin_event("backward");
  const int32_t call = builder.begin(collective(5));
  builder.add(kernel(8));
  builder.end(call);
  builder.add(kernel(2));
  // 5 seconds beside the call do 4 of 8.
  const SimulatedStep step = alone(builder, {.slowdown = 0.25});
  EXPECT_EQ(step.seconds, 11);
  EXPECT_EQ(step.ranks[0].computes, 11);
}

TEST(Simulate, TheHostLaunchesAheadOfTheDevice) {
  const auto seconds = [](int count, int64_t of_kernel, double launch) {
    TimelineBuilder builder;
    builder.begin_event("forward");
    for (int i = 0; i < count; ++i) builder.add(kernel(of_kernel));
    return alone(builder, {.launch = launch}).seconds;
  };
  EXPECT_EQ(seconds(10, 1, 3), 31) << "bound by the host";
  EXPECT_EQ(seconds(10, 3, 1), 31) << "by the device, after the first launch";
  EXPECT_EQ(seconds(10, 3, 0), 30);
}

TEST(Simulate, TheHostIsNotAheadAfterAWait) {
  TimelineBuilder builder;
  builder.begin_event("forward");
  builder.add(kernel(10));
  builder.end(builder.begin(collective(5)));
  builder.add(kernel(10));
  const SimulatedStep step = alone(builder, {.launch = 1});
  EXPECT_EQ(step.seconds, 1 + 10 + 5 + 1 + 10);
  EXPECT_EQ(step.ranks[0].exposed, (std::map<std::string, double>{{"dp", 5}, {"launches", 2}}));
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

SimulatedStep together(const std::vector<StepTimeline>& timelines, bool keep_spans = false) {
  Axes axes;
  for (size_t i = 0; i < timelines.size(); ++i) axes["pp"].push_back(static_cast<int>(i));
  std::vector<RankTimeline> ranks;
  for (size_t i = 0; i < timelines.size(); ++i) ranks.push_back({static_cast<int>(i), &timelines[i], &axes});
  return simulate(ranks, ByteCosts(), keep_spans);
}

TEST(Simulate, APipelineHasTheBubbleOfItsSchedule) {
  for (const int stages : {1, 2, 3, 4}) {
    for (const int m : {1, 4, 7}) {
      EXPECT_EQ(together(gpipe(stages, m, 2, 3, 0)).seconds, (m + stages - 1) * 5) << stages << " " << m;
    }
  }
  EXPECT_EQ(together(gpipe(2, 1, 2, 3, 1)).seconds, 2 + 1 + 2 + 3 + 1 + 3);  // two messages on the way
}

TEST(Simulate, TheStepEndsWithTheLastOfAllRanks) {
  TimelineBuilder builder;
  builder.begin_event("forward");
  builder.add(kernel(8));
  const StepTimeline timeline = builder.take();
  const Axes axes{{"world", {0, 1, 2, 3}}};
  const RankTimeline rank{0, &timeline, &axes};
  const SimulatedStep step = simulate({&rank, 1}, ByteCosts({.straggling = 0.125}));
  EXPECT_EQ(step.seconds, 12);
  EXPECT_EQ(step.ranks[0].seconds, 8);
}

TEST(Simulate, EachRankOfACallHasItsSpan) {
  std::vector<StepTimeline> timelines;
  for (int rank = 0; rank < 2; ++rank) {
    TimelineBuilder builder;
    builder.begin_event("forward");
    builder.add(kernel(rank == 0 ? 2 : 4));
    builder.end(builder.begin(collective(3, "pp")));
    timelines.push_back(builder.take());
  }
  std::map<int, std::vector<std::pair<double, double>>> of_rank;
  for (const SimulatedStep::Span& span : together(timelines, true).spans) {
    if (span.row == "pp") of_rank[span.rank].emplace_back(span.begin, span.end);
  }
  const std::vector<std::pair<double, double>> both{{4, 7}};
  EXPECT_EQ(of_rank, (std::map<int, std::vector<std::pair<double, double>>>{{0, both}, {1, both}}));
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
  EXPECT_EQ(timeline.kernels[1].bytes, 7);
  KernelWork attention = product;
  attention.kind = KernelWork::Kind::attention;
  attention.products = 2;
  attention.is_causal = true;
  EXPECT_EQ(attention.flops(), product.flops());
}

}  // namespace
}  // namespace caravan::testing
