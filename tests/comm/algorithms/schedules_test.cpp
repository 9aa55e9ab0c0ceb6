#include <algorithm>
#include <bit>
#include <gmock/gmock.h>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "caravan/base/error.h"
#include "caravan/comm/algorithms/validate.h"
#include "tests/comm/algorithms/problems.h"

namespace caravan::algorithms::testing {
namespace {

using ::testing::HasSubstr;

Case random_case(Case one) {
  one.size = *rc::gen::inRange(1, 18);
  one.root = *rc::gen::inRange(0, one.size);
  one.count = *rc::gen::inRange(0, 60);
  one.segment = *rc::gen::inRange(1, 70);
  one.uneven = *rc::gen::arbitrary<bool>();
  return one;
}

RC_GTEST_PROP(Schedules, AreRightForAnyRanksSizesAndRoots, ()) {
  const std::vector<Case> all = every_algorithm();
  const Case one = random_case(all[*rc::gen::inRange<size_t>(0, all.size())]);
  RC_LOG() << text(one) << "\n";
  validate(problems_of(one), schedules_of(one));
}

TEST(Schedules, AreRightForEveryNumberOfRanks) {
  for (Case one : every_algorithm()) {
    for (one.size = 1; one.size <= 17; ++one.size) {
      for (const int64_t count : {0, 1, 2, 16, 37}) {
        one.count = count;
        one.root = one.size - 1;
        one.segment = 5;
        EXPECT_NO_THROW(validate(problems_of(one), schedules_of(one))) << text(one);
      }
    }
  }
}

/// A table with one message lost, turned to another rank, moved by an element, or added where it should not be is
/// found.
RC_GTEST_PROP(Schedules, ABrokenOneIsFound, ()) {
  const std::vector<Case> all = every_algorithm();
  Case one = random_case(all[*rc::gen::inRange<size_t>(0, all.size())]);
  one.size = *rc::gen::inRange(2, 9);
  one.root = 0;
  one.count = *rc::gen::inRange(8, 30);
  const auto problems = problems_of(one);
  std::vector<Schedule> schedules = schedules_of(one);
  std::vector<std::pair<std::vector<Move>*, size_t>> moves;
  for (Schedule& schedule : schedules) {
    for (Step& step : schedule.steps) {
      for (auto* list : {&step.sends, &step.recvs}) {
        for (size_t i = 0; i < list->size(); ++i) moves.emplace_back(list, i);
      }
    }
  }
  RC_PRE(!moves.empty());
  const size_t which = *rc::gen::inRange<size_t>(0, moves.size());
  std::vector<Move>* const list = moves[which].first;
  const size_t at = moves[which].second;
  Move& move = (*list)[at];
  const bool is_recv = std::ranges::any_of(schedules, [&](const Schedule& schedule) {
    return std::ranges::any_of(schedule.steps, [&](const Step& step) { return &step.recvs == list; });
  });
  const int kind = *rc::gen::inRange(0, is_recv ? 4 : 3);  // adding means nothing for a send
  if (kind == 0) list->erase(list->begin() + static_cast<std::ptrdiff_t>(at));
  if (kind == 1) move.peer = (move.peer + 1) % one.size;
  if (kind == 2) move.range.count += 1;
  if (kind == 3) move.adds = !move.adds;
  RC_LOG() << text(one) << ", broken by " << kind << "\n" << to_string(schedules);
  RC_ASSERT_THROWS_AS(validate(problems, schedules), InternalError);
}

std::string complaint(const Case& one, const std::vector<Schedule>& schedules) {
  try {
    validate(problems_of(one), schedules);
  } catch (const InternalError& error) {
    return error.what();
  }
  return "";
}

TEST(Schedules, ComplaintsNameStepRankAndElements) {
  const Case one{.verb = Verb::all_reduce, .algorithm = Algorithm::ring, .size = 3, .count = 6};
  std::vector<Schedule> schedules = schedules_of(one);
  schedules[1].steps[2].recvs[0].adds = true;
  EXPECT_THAT(complaint(one, schedules), HasSubstr("step 2, rank 1, elements [0,2): get the input of rank 1 twice"));
  schedules = schedules_of(one);
  schedules[0].num_partial_steps = schedules[1].num_partial_steps = schedules[2].num_partial_steps = 0;
  EXPECT_THAT(complaint(one, schedules), HasSubstr("rounded"));
  schedules = schedules_of(one);
  schedules[2].steps[3].recvs.clear();
  EXPECT_THAT(complaint(one, schedules), HasSubstr("step 3, rank 1, elements [0,2): are not received by rank 2"));
}

/// The columns "steps" of the headers and the page.
TEST(Schedules, TakeTheStepsThatTheirHeadersSay) {
  for (const int n : {1, 2, 3, 4, 5, 7, 8, 9, 16, 31}) {
    const int64_t floor_log = std::bit_width(static_cast<unsigned>(n)) - 1;
    const int64_t ceil_log = std::bit_width(static_cast<unsigned>(n - 1));
    const int64_t fold = std::has_single_bit(static_cast<unsigned>(n)) ? 0 : 2;
    const int64_t several = n > 1 ? 1 : 0;
    const auto steps = [&](Verb verb, Algorithm algorithm) {
      return longest(
                 schedules_of(
                     {.verb = verb, .algorithm = algorithm, .size = n, .root = n / 2, .count = 4 * n, .segment = n}),
                 Dtype::fp32, ReduceOp::sum)
          .steps;
    };
    SCOPED_TRACE(n);
    EXPECT_EQ(steps(Verb::all_reduce, Algorithm::ring), 2 * (n - 1));
    EXPECT_EQ(steps(Verb::all_gather, Algorithm::ring), n - 1);
    EXPECT_EQ(steps(Verb::reduce_scatter, Algorithm::ring), n - 1);
    EXPECT_EQ(steps(Verb::all_reduce, Algorithm::recursive_doubling), floor_log + fold);
    EXPECT_EQ(steps(Verb::all_gather, Algorithm::recursive_doubling), ceil_log);
    EXPECT_EQ(steps(Verb::all_reduce, Algorithm::rabenseifner), 2 * floor_log + fold);
    EXPECT_EQ(steps(Verb::broadcast, Algorithm::binomial), ceil_log);
    EXPECT_EQ(steps(Verb::reduce, Algorithm::binomial), ceil_log);
    EXPECT_EQ(steps(Verb::all_reduce, Algorithm::direct), 2 * several);
    EXPECT_EQ(steps(Verb::reduce, Algorithm::direct), 2 * several);
    for (const Verb verb : {Verb::all_gather, Verb::reduce_scatter, Verb::all_to_all, Verb::broadcast}) {
      EXPECT_EQ(steps(verb, Algorithm::direct), several) << caravan::name(verb);
    }
    const auto chain =
        schedules_of({.verb = Verb::broadcast, .algorithm = Algorithm::chain, .size = n, .count = 4 * n, .segment = n});
    EXPECT_EQ(chain[0].steps.size(), n == 1 ? 0 : n - 2 + 4);
  }
}

TEST(Algorithms, OneThatDoesNotServeNamesThoseThatDo) {
  try {
    make_schedule(Algorithm::binomial, {.verb = Verb::all_reduce, .size = 2, .count = 5});
    FAIL() << "accepted";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("there is no binomial for all_reduce"));
    EXPECT_THAT(error.what(), HasSubstr("direct, ring, recursive_doubling, rabenseifner"));
  }
  EXPECT_THROW(make_schedule(Algorithm::chain, {.verb = Verb::broadcast, .size = 2, .count = 5}), UsageError);
  EXPECT_THROW(check_serves(Algorithm::direct, Verb::barrier), UsageError);
}

}  // namespace
}  // namespace caravan::algorithms::testing
