#include "caravan/base/text.h"

#include <gtest/gtest.h>

#include "caravan/base/differing_texts.h"
#include "caravan/base/error.h"

namespace caravan::text_test {
namespace {

TEST(Text, NearestIsTheLeastEditDistance) {
  const std::vector<std::string> names{"layers", "width", "heads"};
  EXPECT_EQ(nearest("layer", names), "layers");
  EXPECT_EQ(nearest("heds", names), "heads");
  EXPECT_EQ(nearest("HEADS", names), "heads") << "case does not count";
  const std::vector<std::string> options{"--help", "--seed", "--temperature", "--tokens", "--top-k"};
  EXPECT_EQ(nearest("--temp", options), "--temperature") << "a prefix comes before a shorter distance";
  EXPECT_EQ(nearest("--to", options), "--top-k");
  EXPECT_EQ(nearest("--sed", options), "--seed");
  EXPECT_EQ(nearest("x", {}), "");
}

TEST(Text, BytesAndCountsAreReadable) {
  EXPECT_EQ(format_bytes(640), "640 B");
  EXPECT_EQ(format_bytes(1536), "1.5 KiB");
  EXPECT_EQ(format_bytes(int64_t{25} << 30), "25.0 GiB");
  EXPECT_EQ(format_count(640), "640");
  EXPECT_EQ(format_count(124.4e6), "124.40 M");
}

TEST(Text, Utf8IsCheckedByTheStandard) {
  EXPECT_TRUE(is_utf8(""));
  EXPECT_TRUE(is_utf8("a\xC3\xA9\xE2\x80\x94\xF0\x9F\x90\x8B"));
  EXPECT_FALSE(is_utf8("\xC0\xAF"));          // overlong
  EXPECT_FALSE(is_utf8("\xED\xA0\x80"));      // surrogate
  EXPECT_FALSE(is_utf8("\xF4\x90\x80\x80"));  // beyond U+10FFFF
  EXPECT_FALSE(is_utf8("\xE2\x80"));          // cut
  EXPECT_FALSE(is_utf8("\x80"));
}

TEST(Text, LongTextsAreShownWhereTheyDiffer) {
  const auto shown = [](const std::string& first, const std::string& other) {
    const DifferingTexts texts = differing_texts(first, other);
    return std::pair(texts.first, texts.other);
  };
  const auto list = [](int size, const std::string& third) {
    std::string text = "[[0, 0.5], [1, 0.5], " + third;
    for (int i = 3; i < size; ++i) text += ", [" + std::to_string(i) + ", 0.5]";
    return text + "]";
  };
  EXPECT_EQ(shown("0.1", "[a, b]"), std::pair(std::string("0.1"), std::string("[a, b]"))) << "short ones are whole";
  EXPECT_EQ(shown(list(3000, "[2, 0.5]"), list(3000, "\"x, ]\"")),
            std::pair(std::string("a list of 3000 entries, number 3 being [2, 0.5]"),
                      std::string("a list of 3000 entries, number 3 being \"x, ]\"")));
  EXPECT_EQ(shown(list(3000, "[2, 0.5]"), list(2999, "[2, 0.5]")),
            std::pair(std::string("a list of 3000 entries, number 3000 being [2999, 0.5]"),
                      std::string("a list of 2999 entries")));
  EXPECT_EQ(shown(list(99, "[2, 0.5]"), "[]").second, "a list of 0 entries");
  EXPECT_EQ(shown(list(99, "[2, 0.5]"), "1").first, list(99, "[2, 0.5]").substr(0, 200) + " .. (879 bytes left out)");
  const std::string end(300, 'c');
  const auto [first, other] = shown(std::string(500, 'a') + "b" + end, std::string(500, 'a') + end);
  EXPECT_EQ(first, ".. " + std::string(20, 'a') + "b" + std::string(179, 'c') + " .. (601 bytes left out)");
  EXPECT_EQ(other, ".. " + std::string(20, 'a') + std::string(180, 'c') + " .. (600 bytes left out)");
  std::string letters;
  for (int i = 0; i < 101; ++i) letters += "\xC3\xA9";
  EXPECT_TRUE(is_utf8(shown("a" + letters, "b" + letters).first));
  EXPECT_TRUE(is_utf8(shown(letters + letters + "a", letters + letters + "b").first));
}

TEST(Error, MessageFollowsTheTemplate) {
  const ShapeError error({"redistribute", "w [3]", "dim 0 has 3 elements", "rank 1 of 2", "pad"});
  EXPECT_STREQ(error.what(), "[redistribute] w [3]: dim 0 has 3 elements\n  where: rank 1 of 2\n  do: pad");
  EXPECT_EQ(error.exit_code(), 2);
  EXPECT_EQ(error.text().action, "pad");
}

}  // namespace
}  // namespace caravan::text_test
