#include "caravan/techniques/context/ring_schedule.h"

#include <algorithm>
#include <gmock/gmock.h>

#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "tests/techniques/context/gradients_before_keys.h"

namespace caravan::testing::ring_schedule_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Kind = RingStep::Kind;
using Table = std::vector<RingStep>;

size_t at_step(const Table& steps, Kind kind, int turn) {
  return static_cast<size_t>(std::ranges::find(steps, RingStep{kind, turn}) - steps.begin());
}

/// What check_ring says about these tables; "" if it accepts them.
std::string refusal(const std::vector<Table>& tables, bool is_backward) {
  try {
    check_ring(std::vector<std::span<const RingStep>>(tables.begin(), tables.end()), is_backward);
  } catch (const InternalError& error) {
    return error.what();
  }
  return "";
}

// ---- the order of steps ----

/// The next keys are in flight while the turn is computed; the wait comes after it.
TEST(RingSchedule, PassesKeysOnWhileItComputesWithThem) {
  for (const bool is_backward : {false, true}) {
    for (int n = 2; n <= 5; ++n) {
      const Table steps = ring_schedule(n, is_backward);
      for (int turn = 0; turn < n; ++turn) {
        const size_t compute = at_step(steps, Kind::compute, turn);
        ASSERT_LT(compute, steps.size());
        if (turn + 1 == n) {
          EXPECT_EQ(at_step(steps, Kind::send_keys, n), steps.size()) << "nobody waits for the last keys";
          continue;
        }
        EXPECT_LT(at_step(steps, Kind::send_keys, turn + 1), compute);
        EXPECT_LT(at_step(steps, Kind::recv_keys, turn + 1), compute);
        EXPECT_LT(compute, at_step(steps, Kind::wait_keys, turn + 1));
      }
    }
  }
}

/// Gradients of a turn are in flight while its products are computed.
TEST(RingSchedule, ReceivesSumsWhileItComputesItsOwn) {
  for (int n = 2; n <= 5; ++n) {
    const Table steps = ring_schedule(n, true);
    for (int turn = 1; turn < n; ++turn) {
      EXPECT_LT(at_step(steps, Kind::recv_sums, turn), at_step(steps, Kind::compute, turn));
      EXPECT_LT(at_step(steps, Kind::compute, turn), at_step(steps, Kind::wait_sums, turn));
      EXPECT_LT(at_step(steps, Kind::wait_sums, turn), at_step(steps, Kind::add, turn));
    }
    EXPECT_EQ(steps.back(), (RingStep{Kind::wait_sums, n})) << "its own sum comes home";
  }
}

/// Nothing is in flight while a turn is computed.
TEST(RingSchedule, WaitsAtOnceWithoutOverlap) {
  for (int n = 2; n <= 5; ++n) {
    for (const bool is_backward : {false, true}) {
      const Table steps = ring_schedule(n, is_backward, /*overlaps=*/false);
      EXPECT_EQ(steps.size(), ring_schedule(n, is_backward).size());
      for (size_t i = 0; i < steps.size(); ++i) {
        if (steps[i].kind != Kind::recv_keys && steps[i].kind != Kind::recv_sums) continue;
        const Kind wait = steps[i].kind == Kind::recv_keys ? Kind::wait_keys : Kind::wait_sums;
        ASSERT_LT(i + 1, steps.size());
        EXPECT_EQ(steps[i + 1], (RingStep{wait, steps[i].turn}));
      }
    }
  }
}

/// Messages between two ranks match in the order in which they start.
TEST(RingSchedule, SendsInTheOrderInWhichTheNextRankReceives) {
  for (int n = 2; n <= 5; ++n) {
    for (const bool is_backward : {false, true}) {
      for (const bool overlaps : {false, true}) {
        std::vector<std::pair<bool, int>> sent, received;  // whether it is a sum, and the turn
        for (const auto& [kind, turn] : ring_schedule(n, is_backward, overlaps)) {
          if (kind == Kind::send_keys || kind == Kind::send_sums) sent.emplace_back(kind == Kind::send_sums, turn);
          if (kind == Kind::recv_keys || kind == Kind::recv_sums) received.emplace_back(kind == Kind::recv_sums, turn);
        }
        EXPECT_EQ(sent, received);
        EXPECT_EQ(sent.size(), n - 1 + (is_backward ? n : 0));
      }
    }
  }
}

// ---- the check over all ranks ----

TEST(RingCheck, AcceptsEverySchedule) {
  for (const int n : {2, 3, 4, 5, 8, 33}) {
    for (const bool is_backward : {false, true}) {
      for (const bool overlaps : {false, true}) {
        EXPECT_EQ(refusal(std::vector<Table>(n, ring_schedule(n, is_backward, overlaps)), is_backward), "");
        EXPECT_EQ(checked_ring_schedule(n, is_backward, overlaps), ring_schedule(n, is_backward, overlaps));
      }
    }
  }
}

/// The message that is taken for another is named, with both ranks and steps.
TEST(RingCheck, RefusesGradientsBeforeKeys) {
  for (const int n : {2, 3, 4}) {
    const Table table = gradients_before_keys(n, true, /*overlaps=*/false);
    EXPECT_THAT(refusal(std::vector<Table>(n, table), true),
                AllOf(HasSubstr("(send sums of turn 1): is message 0 to rank"), HasSubstr("which receives another one"),
                      HasSubstr("(receive keys of turn 1)")));
  }
}

TEST(RingCheck, RefusesRanksThatWaitForEachOther) {
  const Table first{
      {Kind::compute, 0}, {Kind::recv_keys, 1}, {Kind::wait_keys, 1}, {Kind::send_keys, 1}, {Kind::compute, 1}};
  EXPECT_THAT(refusal({first, first, first}, false),
              HasSubstr("(wait for keys of turn 1): waits forever for rank 2 to send it, which waits in its step 2"));
  const Table silent{{Kind::compute, 0}};
  EXPECT_THAT(refusal({ring_schedule(2, false), silent}, false),
              HasSubstr("(wait for keys of turn 1): waits forever: rank 1 does not send it"));
}

/// What is computed with, added or sent is there.
TEST(RingCheck, NamesWhatIsMissing) {
  const auto backward = [](auto change) {
    std::vector<Table> tables(2, ring_schedule(2, true, /*overlaps=*/false));
    for (Table& table : tables) change(table);
    return refusal(tables, true);
  };
  const auto swap = [](Table& table, RingStep a, RingStep b) {
    std::swap(*std::ranges::find(table, a), *std::ranges::find(table, b));
  };
  EXPECT_THAT(backward([&](Table& t) {
                swap(t, {Kind::compute, 1}, {Kind::wait_keys, 1});
              }),
              HasSubstr("(compute of turn 1): the keys of this turn are not there"));
  EXPECT_THAT(backward([&](Table& t) {
                swap(t, {Kind::add, 0}, {Kind::compute, 0});
              }),
              HasSubstr("(add gradients of turn 0): its gradients are not computed"));
  EXPECT_THAT(backward([&](Table& t) {
                swap(t, {Kind::add, 0}, {Kind::send_sums, 1});
              }),
              HasSubstr("(send sums of turn 1): the gradients of this rank are not added"));
  EXPECT_THAT(backward([&](Table& t) {
                swap(t, {Kind::add, 1}, {Kind::recv_sums, 2});
              }),
              HasSubstr("the gradients of this rank are not added"));
  EXPECT_THAT(backward([](Table& t) { t.pop_back(); }), HasSubstr("sums are still in flight"));
  EXPECT_THAT(refusal(std::vector<Table>(2, ring_schedule(2, true)), false),
              HasSubstr("a forward pass has no gradients"));
}

/// A step that a rank omits or repeats is noticed, for every step.
TEST(RingCheck, RefusesAMissingAndADoubleStep) {
  for (const int n : {2, 3, 4}) {
    for (const bool is_backward : {false, true}) {
      for (const bool overlaps : {false, true}) {
        const Table table = ring_schedule(n, is_backward, overlaps);
        for (size_t i = 0; i < table.size(); ++i) {
          std::vector<Table> tables(n, table);
          tables[1].erase(tables[1].begin() + static_cast<std::ptrdiff_t>(i));
          EXPECT_NE(refusal(tables, is_backward), "") << n << " without " << to_string(table[i]);
          tables[1] = table;
          tables[1].insert(tables[1].begin() + static_cast<std::ptrdiff_t>(i), table[i]);
          EXPECT_NE(refusal(tables, is_backward), "") << n << " twice " << to_string(table[i]);
        }
      }
    }
  }
}

}  // namespace
}  // namespace caravan::testing::ring_schedule_test
