#include "tests/needs.h"

#include <algorithm>
#include <mutex>
#include <sstream>
#include <utility>

#include <gtest/gtest.h>

namespace caravan::testing {
namespace {

/// What the current row lacks.
std::string& missing_of_row() {
  static std::string missing;
  return missing;
}

bool is_there(std::string_view name) {
  return std::ranges::any_of(families(), [&](const Family& family) {
    return std::ranges::any_of(entries_of(family.name),
                               [&](const Entry& entry) { return entry.name == name || entry.body == name; });
  });
}

/// Skips this case without ending it.
void skip(const ::testing::TestInfo& running, const std::string& reason) {
  GTEST_MESSAGE_AT_(running.file(), running.line(), reason.c_str(), ::testing::TestPartResult::kSkip);
}

std::string reason_of(const std::string& entry) { return "needs " + entry + ", which this build lacks"; }

void lacks(const std::string& entry) {
  const ::testing::TestInfo* running = ::testing::UnitTest::GetInstance()->current_test_info();
  if (running == nullptr) {
    missing_of_row() = entry;
    return;
  }
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (!::testing::Test::IsSkipped()) skip(*running, reason_of(entry));  // not yet by another rank
  // GoogleTest ends a case that throws this, and adds no failure.
  throw ::testing::AssertionException(
      ::testing::TestPartResult(::testing::TestPartResult::kSkip, running->file(), running->line(), ""));
}

std::string without_quotes(std::string text) {
  std::erase_if(text, [](char c) { return c == '"' || c == ' '; });
  return text;
}

/// GoogleTest does not run a case that is skipped as it starts.
class NeedsOfAll : public ::testing::EmptyTestEventListener {
 public:
  explicit NeedsOfAll(std::vector<std::string> entries) : entries_(std::move(entries)) {}
  void OnTestStart(const ::testing::TestInfo& test) override {
    for (const std::string& entry : entries_) {
      if (!is_there(entry)) return skip(test, reason_of(entry));
    }
  }

 private:
  std::vector<std::string> entries_;
};

}  // namespace

void need_in_every_case(std::vector<std::string> entries) {
  ::testing::UnitTest::GetInstance()->listeners().Append(new NeedsOfAll(std::move(entries)));
}

void needs(std::initializer_list<std::string_view> entries) {
  for (const std::string_view entry : entries) {
    if (!is_there(entry)) lacks(std::string(entry));
  }
}

void needs_entry(std::string_view family, std::string_view name) {
  if (find_entry(family, name) == nullptr) lacks(std::string(name));
}

void needs_chosen(const std::vector<std::string>& set) {
  bool has_tp = false, has_kind = false;
  for (const std::string& one : set) {
    const size_t equals = one.find('=');
    if (equals == std::string::npos) continue;
    const std::string key = without_quotes(one.substr(0, equals)),
                      value = without_quotes(one.substr(equals + 1, one.find(" #") - equals - 1));
    has_tp = has_tp || (key == "mesh.tp" && value != "1");
    has_kind = has_kind || key == "tensor_parallel.kind";
    for (const Family& family : families()) {
      const std::string section = std::string(family.section) + ".";
      if (key == "mesh." + std::string(family.axis) && value != "1" && entries_of(family.name).empty()) {
        lacks("an entry of " + std::string(family.name));
      }
      if (family.key.empty() || key != section + std::string(family.key)) continue;
      if (value.starts_with("[")) {
        if (entry_by_list(family.name) == nullptr) lacks("modules");
      } else if (!value.ends_with(".txt")) {  // the table of a pipeline
        needs_entry(family.name, value);
      }
    }
  }
  // The default in tests: no other way splits layers over any number of ranks.
  if (has_tp && !has_kind) needs_entry("tensor_parallel", "1d");
}

void needs_chosen_in(const std::string& toml) {
  std::istringstream lines(toml);
  std::string section;
  std::vector<std::string> set;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("[")) {
      section = line.substr(1, line.find(']') - 1);
    } else {
      set.push_back(section + "." + line);
    }
  }
  needs_chosen(set);
}

Setting setting_of(std::string_view family, const std::string& name,
                   const std::vector<std::pair<std::string, RecipeValue>>& values) {
  needs_entry(family, name);
  if (find_entry(family, name) == nullptr) return Setting(family);
  return Setting(family, name, values);
}

RowNeeds::RowNeeds() : missing_(std::exchange(missing_of_row(), "")) {}

void RowNeeds::check() const {
  if (!missing_.empty()) lacks(missing_);
}

}  // namespace caravan::testing
