#include <fstream>
#include <sstream>

#include <gtest/gtest.h>

#include "caravan/comm/choice/selection.h"
#include "tests/comm/algorithms/problems.h"

namespace caravan::algorithms::testing::page_test {
namespace {

std::string page() {
  std::ifstream file(CARAVAN_SOURCE_DIR "/docs/design/collectives.md");
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

/// The tables of docs/design/collectives.md are those of the code.
TEST(Page, ShowsTheActualSchedules) {
  const std::string text = page();
  for (const Case& one :
       {Case{Verb::all_reduce, Algorithm::direct}, Case{Verb::all_reduce, Algorithm::ring},
        Case{Verb::all_reduce, Algorithm::recursive_doubling}, Case{Verb::all_reduce, Algorithm::rabenseifner},
        Case{Verb::broadcast, Algorithm::binomial}, Case{Verb::broadcast, Algorithm::chain}}) {
    Case four = one;
    four.size = 4;
    four.count = 8;
    four.segment = 4;
    const std::string drawing = to_string(plans_of(four));
    EXPECT_NE(text.find("```text\n" + drawing + "```"), std::string::npos)
        << "the page lacks this drawing of " << testing::text(four) << ":\n"
        << drawing;
  }
}

TEST(Page, ShowsTheActualBuiltInTable) {
  const std::string table = SelectionTable().to_string();
  EXPECT_NE(page().find("```text\n" + table + "```"), std::string::npos) << "the page lacks this table:\n" << table;
}

}  // namespace
}  // namespace caravan::algorithms::testing::page_test
