#include <array>
#include <gmock/gmock.h>

#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/schedule/schedule.h"
#include "tests/mesh/refusal.h"

namespace caravan::testing::moves_test {
namespace {

using ::testing::HasSubstr;
using Moved = Action::Moved;

/// A unit for each of `num` groups; all of them move everything.
Units chain(int num) {
  Units units;
  for (int i = 0; i < num; ++i) {
    const std::string name = "unit" + std::to_string(i);
    units.units.push_back({.name = name, .groups = {i}, .moves_activations = true});
    units.groups.push_back({.name = name, .is_gathered = true, .is_fetched = true, .moves_gradients = true});
  }
  return units;
}

Schedule table_of(const Units& units, int micro_batches, int ahead, bool steps_early = false) {
  Units own = units;
  for (Units::Group& group : own.groups) group.steps_early = steps_early;
  Schedule table = with_reductions(with_gathers(expand(accumulate(micro_batches), own), own), own);
  table = with_moves(with_steps(table, own), own, ahead);
  table = with_update(std::move(table));
  check(std::array{table}, own);
  return table;
}

TEST(Moves, PlaceFetchesAheadOfUse) {
  EXPECT_EQ(to_string(table_of(chain(3), 1, 0)),
            "L0 G0 F0.0 Ea0.0 X0 L1 G1 F1.0 Ea1.0 X1 L2 G2 F2.0 B2.0 R2.0 X2 L1 G1 La1.0 B1.0 R1.0 X1 L0 G0 La0.0 B0.0 "
            "R0.0 X0 U");
}

TEST(Moves, AreCheckedAtEveryDepth) {
  for (const int ahead : {0, 1, 2, 5, 100}) {
    for (int num = 1; num <= 5; ++num) {
      for (const int micro_batches : {1, 2, 3}) {
        for (const bool early : {false, true}) {
          const Schedule table = table_of(chain(num), micro_batches, ahead, early);
          int evicted = 0, fetched = 0, steps = 0;
          for (const Action& entry : table) {
            evicted += entry.kind == Action::Kind::evict ? 1 : 0;
            fetched += entry.kind == Action::Kind::fetch && entry.moved != Moved::parameters ? 1 : 0;
            steps += entry.kind == Action::Kind::step ? 1 : 0;
          }
          EXPECT_EQ(evicted, fetched);
          EXPECT_EQ(steps, early ? num : 0);
        }
      }
    }
  }
}

/// B adds what its W does not put off: sums that are away in between would lose it.
TEST(Moves, KeepSumsFromTheFirstBackwardToTheLastWeightGradients) {
  const Units units = chain(2);
  PassOrder order;
  for (const int m : {0, 1, 2}) order.push_back({Pass::Kind::forward, m, 0});
  for (const int m : {0, 1}) order.push_back({Pass::Kind::backward, m, 0});
  order.push_back({Pass::Kind::weight, 0, 0});
  order.push_back({Pass::Kind::backward, 2, 0});
  for (const int m : {1, 2}) order.push_back({Pass::Kind::weight, m, 0});
  Schedule table = with_reductions(with_gathers(expand(order, units), units), units);
  table = with_update(with_moves(table, units, 0));
  check(std::array{table}, units);
}

TEST(Moves, WrongTablesAreNamed) {
  const Units units = chain(2);
  const Schedule right = table_of(units, 2, 0);
  const auto without = [&](Action::Kind kind, Moved moved) {
    Schedule table = right;
    const auto found =
        std::ranges::find_if(table, [&](const Action& entry) { return entry.kind == kind && entry.moved == moved; });
    table.erase(found);
    return refusal<UsageError>([&] { check(std::array{table}, units); });
  };
  EXPECT_THAT(without(Action::Kind::fetch, Moved::parameters), HasSubstr("is not fetched"));
  EXPECT_THAT(without(Action::Kind::fetch, Moved::gradients), HasSubstr("evicted"));
  EXPECT_THAT(without(Action::Kind::fetch, Moved::activations), HasSubstr("needs activations that are evicted"));
  EXPECT_THAT(without(Action::Kind::evict, Moved::activations), HasSubstr("not evicted"));
  Schedule early = right;
  early.insert(early.begin(), {.kind = Action::Kind::step, .unit = 0});
  EXPECT_THAT(refusal<UsageError>([&] { check(std::array{early}, units); }), HasSubstr("is not reduced yet"));
}

}  // namespace
}  // namespace caravan::testing::moves_test
