// docs/reference/global_rules.md lists the ops that have rules. CARAVAN_WRITE_DOCS=1 writes it.
#include <cstdlib>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <gtest/gtest.h>

#include "caravan/global/operation.h"

namespace caravan::testing::rules_doc_test {
namespace {

const char* const kFile = CARAVAN_SOURCE_DIR "/docs/reference/global_rules.md";

std::string page() {
  std::set<std::string> names;
  for (const auto& [name, rule] : rule_table().all()) {
    if (name.starts_with("aten::")) names.insert(name);  // others are those of register_rule
  }
  std::ostringstream text;
  text << "# Ops with rules\n\n"
          "Generated from the code (`tests/global/rules_doc_test.cpp`). Ops that ATen tags as pointwise, and those on\n"
          "lists (`_foreach_`, `_fused_`), have one rule together and are not listed. A name without overload stands\n"
          "for all of its overloads. All other ops run on gathered tensors: see\n"
          "[global tensors](../global_tensors.md).\n\n";
  std::map<char, std::string> lines;
  for (const std::string& name : names) {
    const std::string base = name.substr(name.find("::") + 2);
    const size_t letter = base.find_first_not_of('_');
    std::string& line = lines[letter == std::string::npos ? '_' : base[letter]];
    line += (line.empty() ? "`" : ", `") + base + "`";
  }
  for (const auto& [letter, line] : lines) text << "- " << line << "\n";
  return text.str();
}

TEST(GlobalRules, AreListedInTheReference) {
  if (std::getenv("CARAVAN_WRITE_DOCS") != nullptr) std::ofstream(kFile) << page();
  std::ifstream file(kFile);
  std::stringstream written;
  written << file.rdbuf();
  EXPECT_EQ(written.str(), page())
      << "write it again: CARAVAN_WRITE_DOCS=1 test_global --cases=tests/global/rules_doc_test.cpp";
}

TEST(GlobalRules, AreOfOpsThatThereAre) {
  std::set<std::string> known;
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    known.insert(name.name);
    known.insert(name.name + "." + name.overload_name);
  }
  for (const auto& [name, rule] : rule_table().all()) EXPECT_TRUE(known.contains(name)) << name;
}

}  // namespace
}  // namespace caravan::testing::rules_doc_test
