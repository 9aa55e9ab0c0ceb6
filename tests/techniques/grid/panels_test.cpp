#include "caravan/techniques/grid/panels.h"

#include <algorithm>
#include <gmock/gmock.h>

#include <gtest/gtest.h>

#include "caravan/base/error.h"

namespace caravan::testing::panels_test {
namespace {

using ::testing::HasSubstr;
using enum PanelAction::Kind;
using Table = std::vector<PanelAction>;

/// What check_panels says about these tables; "" if it accepts them.
std::string refusal(const std::vector<Table>& tables, int num_panels, bool reduces) {
  try {
    check_panels(std::vector<std::span<const PanelAction>>(tables.begin(), tables.end()), num_panels, reduces);
  } catch (const InternalError& error) {
    return error.what();
  }
  return "";
}

TEST(PanelCheck, AcceptsEverySchedule) {
  for (const int n : {1, 2, 3, 8}) {
    for (const bool reduces : {false, true}) {
      for (const bool overlaps : {false, true}) {
        const Table table = panel_schedule(n, reduces, overlaps);
        EXPECT_EQ(refusal(std::vector<Table>(static_cast<size_t>(n) * n, table), n, reduces), "");
        EXPECT_EQ(checked_panel_schedule(n, reduces, overlaps), table);
      }
    }
  }
}

/// Collectives on an axis match in order: a rank that starts them in another order would take one for the other.
TEST(PanelCheck, RefusesAnotherOrderOfCollectives) {
  std::vector<Table> tables(4, panel_schedule(2, true, /*overlaps=*/true));
  tables[2] = panel_schedule(2, true, /*overlaps=*/false);
  EXPECT_THAT(refusal(tables, 2, true),
              HasSubstr("rank 2, the end: collective 1 is reduce 0, that of rank 0 is gather 1"));
}

TEST(PanelCheck, NamesWhatIsMissing) {
  const auto alone = [](const Table& table, bool reduces) { return refusal({table}, 1, reduces); };
  EXPECT_THAT(alone({{multiply, 0}, {gather, 0}, {free, 0}}, false),
              HasSubstr("action 0 (multiply 0): its panel is not gathered"));
  EXPECT_THAT(alone({{gather, 0}, {free, 0}, {multiply, 0}}, false), HasSubstr("its panel is not multiplied yet"));
  EXPECT_THAT(alone({{gather, 0}, {reduce, 0}, {multiply, 0}, {free, 0}, {finish, 0}}, true),
              HasSubstr("its gradients are not computed"));
  EXPECT_THAT(alone({{gather, 0}, {multiply, 0}, {free, 0}, {finish, 0}, {reduce, 0}}, true),
              HasSubstr("its reduction is not started"));
  EXPECT_THAT(alone({{gather, 0}, {multiply, 0}, {free, 0}}, true), HasSubstr("gradients are not reduced"));
  EXPECT_THAT(alone({{gather, 0}, {multiply, 0}, {free, 0}, {reduce, 0}}, false), HasSubstr("reduces nothing"));
}

TEST(PanelCheck, RefusesAMissingAndADoubleAction) {
  for (const bool reduces : {false, true}) {
    for (const bool overlaps : {false, true}) {
      const Table table = panel_schedule(3, reduces, overlaps);
      for (size_t i = 0; i < table.size(); ++i) {
        std::vector<Table> tables(9, table);
        tables[4].erase(tables[4].begin() + static_cast<std::ptrdiff_t>(i));
        EXPECT_NE(refusal(tables, 3, reduces), "") << i;
        tables[4] = table;
        tables[4].insert(tables[4].begin() + static_cast<std::ptrdiff_t>(i), table[i]);
        EXPECT_NE(refusal(tables, 3, reduces), "") << i;
      }
    }
  }
}

}  // namespace
}  // namespace caravan::testing::panels_test
