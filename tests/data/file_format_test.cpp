#include "caravan/data/files/file_format.h"

#include <gmock/gmock.h>

#include <gtest/gtest.h>

#include "tests/data/support.h"

namespace caravan::file_format_test {
namespace {

using namespace std::string_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::string refusal(const std::string& content) {
  return message_of<DataError>([&] { check_is_text(content, "the/file"); });
}

TEST(FileFormat, OtherFormatsAreNamedWithWhatToDo) {
  const std::vector<std::vector<std::string>> cases{
      {"\xfd"
       "7zXZ\0\0\x04"s,
       "an xz file", "xz -dc"},
      {"BZh91AY&SY", "a bzip2 file", "bzip2 -dc"},
      {"PK\x03\x04\x14\0"s, "a zip archive", "extract"},
      {std::string(257, 'n') + "ustar\0"s, "a tar archive", "extract"},
      {"PAR1\x15\x04"s, "a Parquet file", "text column"},
      {"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"s, "a PNG image", "name a text file"},
      {"%PDF-1.7\n", "a PDF document", "convert"},
      {"\xff\xfeH\0i\0"s, "text in UTF-16", "iconv -f UTF-16 -t UTF-8"},
      {"\xfe\xff\0H\0i"s, "text in UTF-16", "iconv -f UTF-16 -t UTF-8"},
      {"\xff\xfe\0\0H\0\0\0"s, "text in UTF-32", "iconv -f UTF-32"},
      {"H\0i\0 \0y\0o\0u\0"s, "text in UTF-16", "iconv -f UTF-16LE"},
      {"\0H\0i\0 \0y\0o\0u"s, "text in UTF-16", "iconv -f UTF-16BE"},
      {"Call me\0Ishmael."s, "byte 7 of 16 is 0", "name a text file"},
  };
  for (const auto& parts : cases) {
    const std::string message = refusal(parts.front());
    for (size_t i = 1; i < parts.size(); ++i) EXPECT_THAT(message, HasSubstr(parts[i]));
    EXPECT_THAT(message, HasSubstr("the/file"));
  }
}

TEST(FileFormat, TextIsText) {
  for (const std::string& text :
       {"Call me Ishmael."s, "{\n  \"a\": 1\n}\n"s, "{ braces, and prose }\n"s, "{} \n"s + "no JSON\n"s, "PAR"s, "P"s,
        "\xef\xbb\xbf with a mark of UTF-8"s, "caf\xc3\xa9"s, "BZ and more"s, "{\"a\": 1}\nand prose\n"s}) {
    EXPECT_NO_THROW(check_is_text(text, "the/file")) << text;
    EXPECT_FALSE(is_json_lines(text)) << text;
  }
}

TEST(FileFormat, JsonLinesAreDetectedByTheFirstLine) {
  EXPECT_TRUE(is_json_lines("{\"text\": \"one\"}\n{\"text\": \"two\"}\n"));
  EXPECT_TRUE(is_json_lines("{\"text\": \"one { two\"}\r\n"));
  EXPECT_TRUE(is_json_lines("{}\n\n{\"a\": 1}\n"));
}

/// Complete and incomplete characters that straddle the pieces in which the text is checked.
TEST(FileFormat, PiecesAreCheckedAsOneText) {
  constexpr size_t kPiece = size_t{1} << 20;
  for (size_t before = kPiece - 4; before <= kPiece; ++before) {
    const std::string text = std::string(before, 'a') + "\xF0\x9F\x98\x80 and more";
    EXPECT_NO_THROW(check_is_text(text, "f")) << before;
    const std::string cut = text.substr(0, before + 3);
    EXPECT_THAT(refusal(cut + " and more"), HasSubstr("at offset " + std::to_string(before) + " of"));
    EXPECT_THAT(refusal(cut), HasSubstr("at offset " + std::to_string(before) + " of"));
    EXPECT_THAT(refusal(text + "\xff"), HasSubstr("at offset " + std::to_string(text.size()) + " of"));
  }
}

}  // namespace
}  // namespace caravan::file_format_test
