#include "caravan/generate/stop_strings.h"

#include <gmock/gmock.h>

#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "tests/data/support.h"

namespace caravan::stop_strings_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// What is shown after each piece, and at the end "|found" or what was held back.
std::vector<std::string> shown(const std::vector<std::string>& strings, const std::vector<std::string>& pieces) {
  StopStrings stop(strings);
  std::vector<std::string> all;
  for (const std::string& piece : pieces) all.push_back(stop.put(piece));
  all.push_back(stop.finish() + (stop.found() ? "|found" : ""));
  return all;
}

TEST(StopStrings, HoldBackWhatMayBeginOne) {
  EXPECT_THAT(shown({"END"}, {"a", "bE", "N", "x", "EE", "ND", "more"}),
              ElementsAre("a", "b", "", "ENx", "E", "", "", "|found"));
  EXPECT_THAT(shown({"END"}, {"aEN"}), ElementsAre("a", "EN"));
  EXPECT_THAT(shown({}, {"a", "b"}), ElementsAre("a", "b", ""));
  EXPECT_THAT(shown({"aab"}, {"a", "a", "a", "b"}), ElementsAre("", "", "a", "", "|found"));
  EXPECT_THAT(shown({"\n\n"}, {"one\n", "two\n", "\nthree"}), ElementsAre("one", "\ntwo", "", "|found"));
  EXPECT_THAT(shown({"é!"}, {"caf", "é", "?"}), ElementsAre("caf", "", "é?", ""));
}

/// All that is shown of `text` in pieces of `length` bytes.
std::string all_shown(const std::vector<std::string>& strings, const std::string& text, size_t length) {
  StopStrings stop(strings);
  std::string all;
  for (size_t i = 0; i < text.size(); i += length) all += stop.put(text.substr(i, length));
  return all + stop.finish();
}

TEST(StopStrings, AreIndependentOfThePieces) {
  const std::string text = "xaababcabcabcd";
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases{
      {{"abcd"}, "xaababcabc"}, {{"abcd", "bc"}, "xaaba"}, {{"bc", "abc"}, "xaab"},
      {{"xaa", "aa"}, ""},      {{"nothere"}, text},       {{"d", "cabcd", "bcd"}, "xaababcab"},
  };
  for (const auto& [strings, want] : cases) {
    for (size_t length = 1; length <= text.size(); ++length) {
      EXPECT_EQ(all_shown(strings, text, length), want) << strings.front() << " in pieces of " << length;
    }
  }
}

TEST(StopStrings, RefuseInvalidStrings) {
  EXPECT_THAT(message_of<UsageError>([] { StopStrings({"a", ""}); }), HasSubstr("stop string: is empty"));
  EXPECT_THAT(message_of<UsageError>([] { StopStrings({"\xff"}); }), HasSubstr("stop string: is not UTF-8"));
}

}  // namespace
}  // namespace caravan::stop_strings_test
