#include "tests/chosen_cases.h"

#include <cstdlib>
#include <iostream>
#include <sstream>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

namespace caravan::testing {
namespace {

constexpr std::string_view kFlag = "--cases=";

bool is_chosen(const ::testing::TestInfo& test, const std::string& choice) {
  if (choice.back() == '/') return std::string_view(test.test_suite_name()).starts_with(choice);
  return std::string_view(test.file()).ends_with("/" + choice);
}

/// A gtest filter with the names of all cases that match `choice`, each followed by a colon.
std::string names_of(const std::string& choice) {
  const auto& program = *::testing::UnitTest::GetInstance();
  std::string names;
  for (int s = 0; s < program.total_test_suite_count(); ++s) {
    const auto& suite = *program.GetTestSuite(s);
    for (int t = 0; t < suite.total_test_count(); ++t) {
      const auto& test = *suite.GetTestInfo(t);
      if (is_chosen(test, choice)) names += std::string(suite.name()) + "." + test.name() + ":";
    }
  }
  return names;
}

[[noreturn]] void refuse(const std::string& reason) {
  std::cerr << kFlag << ": " << reason << std::endl;
  std::exit(2);
}

}  // namespace

void choose_cases(int argc, char** argv) {
  if (!GTEST_FLAG_GET(internal_run_death_test).empty()) return;  // the child of a death test has its filter
  std::string names;
  for (int i = 1; i < argc; ++i) {
    if (!std::string_view(argv[i]).starts_with(kFlag)) refuse(std::string("unknown argument ") + argv[i]);
    std::istringstream choices(argv[i] + kFlag.size());
    for (std::string choice; std::getline(choices, choice, ',');) {
      const std::string found = names_of(choice);
      // A back-end may have no case for the given number of ranks, but a file without a case is a mistake.
      if (found.empty() && choice.back() != '/') refuse("no case of this program is written in " + choice);
      names += found;
    }
    if (names.empty()) refuse("no case is chosen");
    if (GTEST_FLAG_GET(filter) != "*") refuse("cannot be combined with --gtest_filter");
    GTEST_FLAG_SET(filter, names);
  }
}

}  // namespace caravan::testing
