#include "caravan/cost/extend_timeline.h"

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "caravan/cost/simulate.h"
#include "caravan/recipe/recipe.h"
#include "caravan/train/model/rehearse.h"

namespace caravan::testing::extend_timeline_test {
namespace {

constexpr int kRanks = 8, kStages = 4;

/// A second a kernel, and unlike times for calls.
class PlainCosts final : public StepCosts {
 public:
  double seconds(const KernelWork& work, int) const override { return 1 + 1e-9 * work.flops(); }
  CallTime seconds(const StepTimeline::Call& call, std::span<const int> ranks) const override {
    return {0.3 * static_cast<double>(ranks.size()) + 1e-4 * call.sent_bytes, 0};
  }
};

Recipe recipe_of(const std::string& schedule, const std::string& technique, int64_t micro_batches, int64_t pp) {
  const auto batch = std::to_string(micro_batches * kRanks / pp);
  return load_recipe("",
                     {"model.layers=8", "model.width=64", "model.heads=4", "model.context=32", "data.tokenizer=bytes",
                      "model.dropout=0", "train.global_batch=" + batch, "mesh.pp=" + std::to_string(pp),
                      "pipeline.schedule=" + schedule, "pipeline.micro_batches=" + std::to_string(micro_batches),
                      "data_parallel.technique=" + technique});
}

std::vector<Rehearsal> rehearsals_of(const Recipe& recipe, int pp) {
  const auto numbers = std::make_shared<RecordedNumbers>();
  std::vector<Rehearsal> all;
  for (int place = 0; place < pp; ++place) {
    all.push_back(rehearse(recipe, 256, kRanks, place * kRanks / pp, 0, numbers));
  }
  return all;
}

double seconds_of(const std::vector<Rehearsal>& rehearsals) {
  std::vector<RankTimeline> ranks;
  for (const Rehearsal& one : rehearsals) ranks.push_back({one.rank, &one.timeline, &one.ranks_of_axis});
  return simulate(ranks, PlainCosts()).seconds;
}

/// Of each rank the timeline of 24 micro-batches by those of 8 and 12; nothing if one does not repeat a block.
std::optional<std::vector<StepTimeline>> extended_of(const std::string& schedule, const std::string& technique) {
  const auto few = rehearsals_of(recipe_of(schedule, technique, 8, kStages), kStages);
  const auto more = rehearsals_of(recipe_of(schedule, technique, 12, kStages), kStages);
  std::vector<StepTimeline> all;
  for (size_t place = 0; place < few.size(); ++place) {
    auto extended = extend_timeline(few[place].timeline, more[place].timeline, 4);
    if (!extended) return std::nullopt;
    all.push_back(std::move(*extended));
  }
  return all;
}

TEST(ExtendTimeline, MicroBatchesOfPipelinesRepeat) {
  int num_extended = 0;
  for (const char* schedule : {"1f1b", "interleaved", "zb-h1", "zb-v", "gpipe"}) {
    for (const char* technique : {"zero1", "zero3"}) {
      SCOPED_TRACE(std::string(schedule) + ", " + technique);
      const auto extended = extended_of(schedule, technique);
      if (!extended) continue;
      ++num_extended;
      auto whole = rehearsals_of(recipe_of(schedule, technique, 24, kStages), kStages);
      const double seconds = seconds_of(whole);
      for (size_t place = 0; place < whole.size(); ++place) {
        StepTimeline& timeline = whole[place].timeline;
        EXPECT_EQ((*extended)[place].moments.size(), timeline.moments.size());
        EXPECT_EQ((*extended)[place].calls.size(), timeline.calls.size());
        timeline = (*extended)[place];
      }
      EXPECT_NEAR(seconds_of(whole), seconds, 1e-9 * seconds);
    }
  }
  // All but gpipe, whose forwards and backwards are two blocks, and the prefetches of zero3 in chunks of stages.
  EXPECT_GE(num_extended, 5);
}

StepTimeline timeline_of(const std::vector<int>& products, bool is_other = false) {
  TimelineBuilder builder;
  builder.begin_event("event");
  for (const int size : products) {
    builder.add({.kind = KernelWork::Kind::product, .what = "mm", .m = size, .n = 1, .k = 1});
    const int32_t call = builder.begin({.axis = "dp", .verb = Verb::all_reduce, .what = "x", .sent_bytes = 1.0 * size});
    if (is_other) builder.add({.kind = KernelWork::Kind::memory, .what = "add"});
    builder.end(call);
  }
  return builder.take();
}

TEST(ExtendTimeline, ABlockIsRepeated) {
  const auto extended = extend_timeline(timeline_of({1, 2, 9}), timeline_of({1, 2, 3, 4, 9}), 3);
  ASSERT_TRUE(extended);
  const StepTimeline whole = timeline_of({1, 2, 3, 4, 3, 4, 3, 4, 9});
  ASSERT_EQ(extended->moments.size(), whole.moments.size());
  for (size_t i = 0; i < whole.moments.size(); ++i) {
    const auto& a = extended->moments[i];
    const auto& b = whole.moments[i];
    ASSERT_EQ(a.kind, b.kind);
    if (a.kind == StepTimeline::Moment::Kind::kernel) {
      EXPECT_EQ(extended->kernels[a.index].m, whole.kernels[b.index].m);
    } else {
      EXPECT_EQ(a.index, b.index);
      EXPECT_EQ(extended->calls[a.index].sent_bytes, whole.calls[b.index].sent_bytes);
    }
  }
}

TEST(ExtendTimeline, OtherTimelinesAreNoBlock) {
  EXPECT_FALSE(extend_timeline(timeline_of({1, 2, 9}), timeline_of({1, 3, 9}), 2));
  EXPECT_FALSE(extend_timeline(timeline_of({1, 2, 9}), timeline_of({1, 2}), 2));
  EXPECT_FALSE(extend_timeline(timeline_of({1, 2, 9}), timeline_of({1, 2, 3, 9}, true), 2));
}

}  // namespace
}  // namespace caravan::testing::extend_timeline_test
