#include <algorithm>
#include <bit>
#include <gmock/gmock.h>

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "caravan/base/error.h"
#include "tests/comm/algorithms/problems.h"
#include "tests/comm/algorithms/validate.h"

namespace caravan::algorithms::testing::message_plans_test {
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

RC_GTEST_PROP(MessagePlans, AreRightForAnyRanksSizesAndRoots, ()) {
  const std::vector<Case> all = every_algorithm();
  const Case one = random_case(all[*rc::gen::inRange<size_t>(0, all.size())]);
  RC_LOG() << text(one) << "\n";
  validate(problems_of(one), plans_of(one));
}

TEST(MessagePlans, AreCorrectForEveryNumberOfRanks) {
  for (Case one : every_algorithm()) {
    for (one.size = 1; one.size <= 17; ++one.size) {
      for (const int64_t count : {0, 1, 2, 16, 37}) {
        one.count = count;
        one.root = one.size - 1;
        one.segment = 5;
        EXPECT_NO_THROW(validate(problems_of(one), plans_of(one))) << text(one);
      }
    }
  }
}

/// A plan with one message lost, sent to another rank, longer by an element, or added instead of stored is detected.
RC_GTEST_PROP(MessagePlans, ABrokenOneIsDetected, ()) {
  const std::vector<Case> all = every_algorithm();
  Case one = random_case(all[*rc::gen::inRange<size_t>(0, all.size())]);
  one.size = *rc::gen::inRange(2, 9);
  one.root = 0;
  one.count = *rc::gen::inRange(8, 30);
  const auto problems = problems_of(one);
  std::vector<MessagePlan> plans = plans_of(one);
  std::vector<std::pair<std::vector<Move>*, size_t>> moves;
  for (MessagePlan& plan : plans) {
    for (Step& step : plan.steps) {
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
  const bool is_recv = std::ranges::any_of(plans, [&](const MessagePlan& plan) {
    return std::ranges::any_of(plan.steps, [&](const Step& step) { return &step.recvs == list; });
  });
  const int kind = *rc::gen::inRange(0, is_recv ? 4 : 3);  // a send cannot add
  if (kind == 0) list->erase(list->begin() + static_cast<std::ptrdiff_t>(at));
  if (kind == 1) move.peer = (move.peer + 1) % one.size;
  if (kind == 2) move.range.count += 1;
  if (kind == 3) move.adds = !move.adds;
  RC_LOG() << text(one) << ", broken by " << kind << "\n" << to_string(plans);
  RC_ASSERT_THROWS_AS(validate(problems, plans), InternalError);
}

std::string complaint(const Case& one, const std::vector<MessagePlan>& plans) {
  try {
    validate(problems_of(one), plans);
  } catch (const InternalError& error) {
    return error.what();
  }
  return "";
}

TEST(MessagePlans, ComplaintsNameStepRankAndElements) {
  const Case one{.verb = Verb::all_reduce, .algorithm = Algorithm::ring, .size = 3, .count = 6};
  std::vector<MessagePlan> plans = plans_of(one);
  plans[1].steps[2].recvs[0].adds = true;
  EXPECT_THAT(complaint(one, plans), HasSubstr("step 2, rank 1, elements [0,2): get the input of rank 1 twice"));
  plans = plans_of(one);
  plans[0].num_partial_steps = plans[1].num_partial_steps = plans[2].num_partial_steps = 0;
  EXPECT_THAT(complaint(one, plans), HasSubstr("rounded"));
  plans = plans_of(one);
  plans[2].steps[3].recvs.clear();
  EXPECT_THAT(complaint(one, plans), HasSubstr("step 3, rank 1, elements [0,2): are not received by rank 2"));
}

/// The columns "steps" of the headers and the page.
TEST(MessagePlans, TakeTheDocumentedNumberOfSteps) {
  for (const int n : {1, 2, 3, 4, 5, 7, 8, 9, 16, 31}) {
    const int64_t floor_log = std::bit_width(static_cast<unsigned>(n)) - 1;
    const int64_t ceil_log = std::bit_width(static_cast<unsigned>(n - 1));
    const int64_t fold = std::has_single_bit(static_cast<unsigned>(n)) ? 0 : 2;
    const int64_t several = n > 1 ? 1 : 0;
    const auto steps = [&](Verb verb, Algorithm algorithm) {
      return longest(
                 plans_of(
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
        plans_of({.verb = Verb::broadcast, .algorithm = Algorithm::chain, .size = n, .count = 4 * n, .segment = n});
    EXPECT_EQ(chain[0].steps.size(), n == 1 ? 0 : n - 2 + 4);
  }
}

TEST(Algorithms, UnsupportedOneNamesTheSupportedOnes) {
  try {
    make_plan(Algorithm::binomial, {.verb = Verb::all_reduce, .size = 2, .count = 5});
    FAIL() << "accepted";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("there is no binomial for all_reduce"));
    EXPECT_THAT(error.what(), HasSubstr("direct, ring, recursive_doubling, rabenseifner"));
  }
  EXPECT_THROW(make_plan(Algorithm::chain, {.verb = Verb::broadcast, .size = 2, .count = 5}), UsageError);
  EXPECT_THROW(check_serves(Algorithm::direct, Verb::barrier), UsageError);
}

}  // namespace
}  // namespace caravan::algorithms::testing::message_plans_test
