#include <gmock/gmock.h>

#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/comm/flight/compare.h"
#include "tests/comm/flight/flight_files.h"
#include "tests/ranks/rank_case.h"

namespace caravan::flight_compare_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::error_of;
using testing::FlightJob;
using ::testing::HasSubstr;
using enum FlightState;

TEST(FlightCompare, EqualRecordsHaveNoDivergence) {
  FlightJob job(3);
  for (uint64_t i = 0; i < 5; ++i) job.add_all(job.world(), i, {.begin_ms = static_cast<int>(i)});
  EXPECT_TRUE(compare_flights(job.reports).empty());
  EXPECT_TRUE(compare_flights(FlightJob(2).reports).empty()) << "nothing was called";
  EXPECT_TRUE(compare_flights({}).empty());
}

TEST(FlightCompare, DifferentCallsAreNamedWithBothSides) {
  FlightJob job(4);
  job.add_all(job.world(), 0, {});
  for (const int rank : {0, 1, 3}) job.add(rank, job.world(), 1, {.line = 30, .state = failed, .begin_ms = 5});
  job.add(2, job.world(), 1, {.verb = Verb::broadcast, .what = "weights", .line = 44, .state = failed, .root = 0});
  const auto findings = compare_flights(job.reports);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].kind, Divergence::different_calls);
  EXPECT_EQ(findings[0].group, "world");
  EXPECT_EQ(findings[0].sequence, 1U);
  EXPECT_THAT(findings[0].ranks, ElementsAre(2));
  EXPECT_EQ(findings[0].text,
            "ranks 0, 1, 3 called all_reduce sum fp32 [10] \"gradient\" at techniques/data/ddp.cpp:30; "
            "rank 2 called broadcast fp32 [10] root 0 \"weights\" at techniques/data/ddp.cpp:44");
}

/// What must agree, verb by verb; parts of uneven verbs and call sites need not.
TEST(FlightCompare, KnowsWhatMayDiffer) {
  const auto differ = [](const FlightJob::Op& a, const FlightJob::Op& b) {
    FlightJob job(2);
    job.add(0, job.world(), 0, a);
    job.add(1, job.world(), 0, b);
    return !compare_flights(job.reports).empty();
  };
  EXPECT_FALSE(differ({.what = "a", .line = 1}, {.what = "b", .line = 2}));
  EXPECT_TRUE(differ({.count = 10}, {.count = 11}));
  EXPECT_TRUE(differ({}, {.dtype = Dtype::bf16}));
  EXPECT_FALSE(differ({.verb = Verb::all_gather, .count = 10}, {.verb = Verb::all_gather, .count = 11}));
  EXPECT_TRUE(differ({.verb = Verb::all_gather}, {.verb = Verb::all_gather, .dtype = Dtype::int64}));
  EXPECT_FALSE(differ({.verb = Verb::all_to_all, .count = 3}, {.verb = Verb::all_to_all, .count = 4}));
  EXPECT_TRUE(differ({.verb = Verb::broadcast, .root = 0}, {.verb = Verb::broadcast, .root = 1}));
  EXPECT_FALSE(differ({.verb = Verb::barrier}, {.verb = Verb::barrier}));
  EXPECT_TRUE(differ({.verb = Verb::barrier}, {.verb = static_cast<Verb>(kSplitCall)}));
}

TEST(FlightCompare, NamesRanksThatHaveNotBegunAndWhatTheyDoInstead) {
  FlightJob job(3);
  const FlightJob::Group pair{77, "pp", {1, 2}};
  job.add_all(job.world(), 6, {.begin_ms = 1000});
  for (const int rank : {0, 1}) job.add(rank, job.world(), 7, {.line = 30, .state = started, .begin_ms = 4000});
  job.add(2, pair, 3, {.verb = Verb::recv, .count = 1, .what = "token", .state = started, .begin_ms = 6500, .root = 0});
  const auto findings = compare_flights(job.reports);
  ASSERT_EQ(findings.size(), 2U);
  EXPECT_EQ(findings[0].kind, Divergence::not_begun);
  EXPECT_EQ(findings[0].sequence, 7U);
  EXPECT_THAT(findings[0].ranks, ElementsAre(2));
  EXPECT_EQ(
      findings[0].text,
      "all_reduce sum fp32 [10] \"gradient\" at techniques/data/ddp.cpp:30 was begun by ranks 0, 1 6.0 s before the "
      "end, "
      "not by rank 2; rank 2 is in recv fp32 [1] from 0 \"token\" at techniques/data/ddp.cpp:12, message 3 of \"pp\", "
      "since 3.5 s");
  EXPECT_EQ(findings[1].group, "pp");
}

TEST(FlightCompare, NamesARankThatComputesOrWasKilled) {
  FlightJob job(2);
  job.add_all(job.world(), 0, {.begin_ms = 7499});
  job.add(0, job.world(), 1, {.state = failed, .begin_ms = 8000});
  job.reports[1].written_by = 0;
  const auto findings = compare_flights(job.reports);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_THAT(findings[0].text, AllOf(HasSubstr("not by rank 1; rank 1 came back from all_reduce"),
                                      HasSubstr("has called nothing for 2.5 s (as rank 0 saw it)")));
  FlightJob silent(3);
  for (const int rank : {0, 2}) silent.add(rank, silent.world(), 0, {.state = started});
  EXPECT_THAT(compare_flights(silent.reports)[0].text, HasSubstr("not by rank 1; rank 1 has called nothing"));
}

TEST(FlightCompare, NamesOperationsBegunByAllWithoutAResult) {
  FlightJob job(3);
  job.add(0, job.world(), 0, {.begin_ms = 9000});
  job.add(1, job.world(), 0, {.state = failed, .begin_ms = 9000});
  job.add(2, job.world(), 0, {.state = started, .begin_ms = 9000});
  const auto findings = compare_flights(job.reports);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].kind, Divergence::not_completed);
  EXPECT_THAT(findings[0].ranks, ElementsAre(1, 2));
  EXPECT_THAT(findings[0].text, HasSubstr("1.0 s before the end and has no result on ranks 1, 2; rank 0 has it"));
}

TEST(FlightCompare, MessagesAreComparedByPairAndDirection) {
  FlightJob job(3);
  const auto message = [](Verb verb, int peer, FlightState state, int64_t count = 4) {
    return FlightJob::Op{.verb = verb, .count = count, .state = state, .root = peer};
  };
  job.add(0, job.world(), 0, message(Verb::send, 1, done));
  job.add(1, job.world(), 0, message(Verb::recv, 0, done));
  job.add(0, job.world(), 1, message(Verb::send, 1, done));  // nobody has asked for it yet: no divergence
  job.add(1, job.world(), 0, message(Verb::recv, 2, started));
  job.add(2, job.world(), 0, message(Verb::send, 0, done, 4));
  job.add(0, job.world(), 0, message(Verb::recv, 2, failed, 5));
  const auto findings = compare_flights(job.reports);
  ASSERT_EQ(findings.size(), 2U);
  EXPECT_EQ(findings[0].kind, Divergence::different_calls);
  EXPECT_THAT(findings[0].text,
              AllOf(HasSubstr("rank 2 called send fp32 [4] to 0"), HasSubstr("rank 0 called recv fp32 [5] from 2")));
  EXPECT_EQ(findings[1].kind, Divergence::not_begun);
  EXPECT_THAT(findings[1].ranks, ElementsAre(2));
  EXPECT_THAT(findings[1].text, HasSubstr("recv fp32 [4] from 2"));
}

TEST(FlightCompare, DifferentCallsComeBeforeWhatWaitsForThemAndEarlierBeforeLater) {
  FlightJob job(4);
  const FlightJob::Group left{5, "tp", {0, 1}};
  const FlightJob::Group right{6, "tp", {2, 3}};
  const FlightJob::Group dp{7, "dp", {0, 2}};
  job.add(0, left, 0, {.state = started, .begin_ms = 200});
  job.add(1, left, 0, {.state = started, .begin_ms = 200});
  job.add(2, dp, 0, {.state = started, .begin_ms = 100});
  job.add(0, dp, 0, {.state = started, .begin_ms = 300});
  job.add(2, right, 0, {.state = started, .begin_ms = 900});
  job.add(3, right, 0, {.count = 99, .state = started, .begin_ms = 900});
  const auto findings = compare_flights(job.reports);
  ASSERT_EQ(findings.size(), 3U);
  EXPECT_EQ(findings[0].kind, Divergence::different_calls);
  EXPECT_THAT(findings[0].ranks, ElementsAre(3));
  EXPECT_EQ(findings[1].group, "dp");
  EXPECT_EQ(findings[2].group, "tp");
}

/// A rank of a part that has called nothing on it is known by the other parts of the same name.
TEST(FlightCompare, FindsTheSilentRankOfAPart) {
  FlightJob job(4);
  job.add_all({5, "tp", {0, 1}}, 0, {});
  job.add(3, {6, "tp", {2, 3}}, 0, {.state = started});
  auto findings = compare_flights(job.reports);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].kind, Divergence::not_begun);
  EXPECT_THAT(findings[0].ranks, ElementsAre(2));
  job.reports.erase(job.reports.begin() + 2);  // its record is missing: nothing is said of it
  findings = compare_flights(job.reports);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].kind, Divergence::not_completed);
  EXPECT_THAT(findings[0].ranks, ElementsAre(3));
}

TEST(FlightCompare, OverwrittenOperationsAreAssumedToAgree) {
  FlightJob job(2);
  for (uint64_t i = 0; i < 6; ++i) job.add_all(job.world(), i, {});
  job.add_all(job.world(), 6, {.count = 20});
  auto& entries = job.reports[1].entries;
  entries.erase(entries.begin(), entries.begin() + 4);
  EXPECT_TRUE(compare_flights(job.reports).empty());
  entries.erase(entries.begin(), entries.end() - 1);
  entries[0].group = {99, {"other"}, 0, 1};  // nothing of the world is left
  EXPECT_TRUE(compare_flights(job.reports).empty());
}

TEST(FlightCompare, RecordsThatContradictEachOtherAreRefused) {
  FlightJob twice(2);
  twice.add_all(twice.world(), 0, {});
  twice.reports[1].entries[0].group.rank = 0;
  EXPECT_THAT(error_of<DataError>([&] { compare_flights(twice.reports); }),
              AllOf(HasSubstr("both say they are its rank 0"), HasSubstr("ranks 0 and 1")));
  FlightJob sizes(3);
  sizes.add_all(sizes.world(), 0, {});
  sizes.reports[2].entries[0].group.size = 4;
  EXPECT_THAT(error_of<DataError>([&] { compare_flights(sizes.reports); }),
              HasSubstr("has 3 ranks in one record and 4 in another"));
}

}  // namespace
}  // namespace caravan::flight_compare_test
