#include "caravan/schedule/reduction_order.h"

#include <gtest/gtest.h>

namespace caravan::reduction_order_test {
namespace {

using enum Action::Kind;

TEST(EndsReductions, IsTheLastOfItsGroupBeforeAnUpdate) {
  const auto of = [](Action::Kind kind, int unit, int micro_batch) {
    return Action{.kind = kind, .unit = unit, .micro_batch = micro_batch};
  };
  const Schedule table{of(forward, 0, 0),  of(backward, 0, 0), of(reduce, 0, 0), of(reduce, 1, 0),  of(forward, 0, 1),
                       of(backward, 0, 1), of(reduce, 0, 1),   of(update, 0, 1), of(forward, 0, 2), of(backward, 0, 2),
                       of(reduce, 1, 2),   of(reduce, 0, 2),   of(update, 0, 2)};
  std::vector<bool> ends;
  for (size_t i = 0; i < table.size(); ++i) {
    if (table[i].kind == reduce) ends.push_back(ends_reductions(table, i));
  }
  EXPECT_EQ(ends, (std::vector<bool>{false, true, true, true, true}));
}

/// For each reduction of a million micro-batches this takes milliseconds in all, hours if each looks at all entries.
TEST(EndsReductions, LooksNoFurtherThanTheNextReductionOfTheGroup) {
  Schedule table;
  for (int m = 0; m < 1'000'000; ++m) {
    for (const Action::Kind kind : {forward, backward, reduce}) table.push_back({.kind = kind, .micro_batch = m});
  }
  int num_last = 0;
  for (size_t i = 2; i < table.size(); i += 3) num_last += ends_reductions(table, i) ? 1 : 0;
  EXPECT_EQ(num_last, 1);
}

}  // namespace
}  // namespace caravan::reduction_order_test
