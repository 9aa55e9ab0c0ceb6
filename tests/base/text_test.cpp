#include "caravan/base/text.h"

#include <gtest/gtest.h>

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

TEST(Error, MessageFollowsTheTemplate) {
  const ShapeError error({"redistribute", "w [3]", "dim 0 has 3 elements", "rank 1 of 2", "pad"});
  EXPECT_STREQ(error.what(), "[redistribute] w [3]: dim 0 has 3 elements\n  where: rank 1 of 2\n  do: pad");
  EXPECT_EQ(error.exit_code(), 2);
  EXPECT_EQ(error.text().action, "pad");
}

}  // namespace
}  // namespace caravan::text_test
