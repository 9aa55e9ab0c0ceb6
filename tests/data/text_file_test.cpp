#include "caravan/data/files/text_file.h"

#include <array>
#include <gmock/gmock.h>

#include <gtest/gtest.h>

#include "caravan/data/files/corpus.h"
#include "tests/data/compress.h"
#include "tests/data/support.h"

namespace caravan::text_file_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class TextFileTest : public ::testing::Test {
 protected:
  std::vector<std::string> documents(const std::string& name, const std::string& content,
                                     const TextFormat& format = {}) {
    write_file(folder / name, content);
    const TextFile file(folder / name, folder / "cache", format, DataObserver::none());
    num_skipped = file.num_skipped_lines();
    return {file.documents().begin(), file.documents().end()};
  }
  std::string refusal(const std::string& name, const std::string& content, const TextFormat& format = {}) {
    return message_of<DataError>([&] { documents(name, content, format); });
  }
  const TemporaryFolder folder;
  int64_t num_skipped = 0;
};

const std::string kLines = "{\"text\": \"caf\\u00e9\", \"n\": 1}\n\r\n{\"text\": \"\"}\n{\"text\": \"two\\nlines\"}";

TEST_F(TextFileTest, JsonLinesHaveADocumentEach) {
  for (const char* name : {"a.jsonl", "a.json", "a"}) {
    EXPECT_THAT(documents(name, kLines), ElementsAre("caf\xC3\xA9", "two\nlines")) << name;
  }
  EXPECT_THAT(documents("a.jsonl", "{\"meta\": {\"body\": \"deep\"}}", {.field = "meta.body"}), ElementsAre("deep"));
  EXPECT_THAT(documents("a.jsonl", "{\"meta.body\": \"flat\"}", {.field = "meta.body"}), ElementsAre("flat"));
}

TEST_F(TextFileTest, CompressedFilesAreWhatIsInThem) {
  std::string large;  // of several pieces
  for (int i = 0; i < 400'000; ++i) large += std::to_string(i) + (i % 7 == 0 ? "\n" : " ");
  for (const auto& compress : {gzip, zstd}) {
    EXPECT_THAT(documents("large", compress(large)), ElementsAre(large));
    EXPECT_THAT(documents("two", compress("one, ") + compress("two")), ElementsAre("one, two")) << "concatenated";
    EXPECT_THAT(documents("lines.jsonl.gz", compress(kLines)), ElementsAre("caf\xC3\xA9", "two\nlines"));
    EXPECT_THAT(documents("unnamed", compress(kLines + "\n")), ElementsAre("caf\xC3\xA9", "two\nlines"));
    std::string broken = compress(large);
    EXPECT_THAT(refusal("cut", broken.substr(0, broken.size() / 2)), HasSubstr("is truncated"));
    for (size_t i = broken.size() / 2; i < broken.size() / 2 + 64; ++i) broken[i] = static_cast<char>(~broken[i]);
    EXPECT_THAT(refusal("broken", broken), HasSubstr("damaged"));
    EXPECT_THAT(refusal("picture.gz", compress("\x89PNG\r\n\x1a\n and so on")), HasSubstr("is a PNG image"));
    EXPECT_THAT(refusal("latin1.gz", compress("caf\xE9")), HasSubstr("offset 3"));
    EXPECT_THAT(refusal("empty.gz", compress("")), HasSubstr("has no text"));
  }
}

TEST_F(TextFileTest, BadLinesAreNamedOrCounted) {
  const std::vector<std::array<std::string, 2>> bad{
      {"{\"text\": ", "is not JSON from byte"},
      {"[1, 2]", "is an array, not an object"},
      {"{\"txt\": \"a\", \"id\": 3}", "has no field text, but id, txt"},
      {"{\"text\": 17}", "its field text is a number, not a string"},
      {"{\"text\": \"caf\xE9\"}", "is not JSON"},
      {"{\"text\": \"a\", \"x\": 1e999}", "has a number that is too large: '1e999'"},
      {std::string(200, '['), "nests arrays and objects more than 100 deep"},
  };
  for (const auto& [line, fact] : bad) {
    const std::string content = "{\"text\": \"good\"}\n" + line + "\n{\"text\": \"too\"}\n";
    EXPECT_THAT(refusal("bad.jsonl", content), AllOf(HasSubstr("bad.jsonl:2"), HasSubstr(fact)));
    EXPECT_THAT(documents("bad.jsonl", content, {.skips_bad_lines = true}), ElementsAre("good", "too"));
    EXPECT_EQ(num_skipped, 1);
  }
  EXPECT_THAT(refusal("all.jsonl", "{}\n{}\n", {.skips_bad_lines = true}), HasSubstr("all its 2 lines are bad"));
  EXPECT_THAT(refusal("deep.jsonl", "{\"a\": {\"b\": 1}}", {.field = "a.c"}), HasSubstr("has no field a.c, but b"));
  EXPECT_THAT(refusal("list.jsonl", "{\"a\": [1]}", {.field = "a.c"}),
              AllOf(HasSubstr("has no field a.c"), Not(HasSubstr("but"))));
}

TEST_F(TextFileTest, TheCacheIsReadOrRebuilt) {
  documents("a.jsonl", kLines);
  EXPECT_EQ(list_cache(folder / "cache").size(), 1U);
  const fs::path cached = list_cache(folder / "cache").front().path;
  const auto written = fs::last_write_time(cached);
  documents("copy.jsonl", kLines);
  EXPECT_EQ(list_cache(folder / "cache").size(), 1U) << "known by its content";
  EXPECT_EQ(fs::last_write_time(cached), written);
  const std::string whole = read_file(cached);
  for (size_t i = 0; i < whole.size(); i += 3) {
    std::string damaged = whole;
    damaged[i] = static_cast<char>(~damaged[i]);
    for (const std::string& content : {damaged, whole.substr(0, i)}) {
      write_file(cached, content);
      EXPECT_THAT(documents("a.jsonl", kLines), ElementsAre("caf\xC3\xA9", "two\nlines")) << i;
    }
  }
  documents("a.jsonl", kLines, {.skips_bad_lines = true});
  EXPECT_EQ(list_cache(folder / "cache").size(), 2U) << "another format";
}

TEST_F(TextFileTest, EachFileOfACorpusIsSplit) {
  write_file(folder / "a.txt", "0123456789");
  write_file(folder / "b.jsonl", "{\"text\": \"abcdefgh\"}\n{\"text\": \"ij\"}\n");
  const Corpus corpus(std::vector{folder / "a.txt", folder / "b.jsonl"}, folder / "cache");
  EXPECT_THAT(corpus.documents(), ElementsAre("0123456789", "abcdefgh", "ij"));
  EXPECT_THAT(corpus.split().train, ElementsAre("012345678", "abcdefgh", "i"));
  EXPECT_THAT(corpus.split().validation, ElementsAre("9", "j"));
  EXPECT_THAT(corpus.split(0.5).validation, ElementsAre("56789", "fgh", "ij"));
  EXPECT_TRUE(corpus.split(0).validation.empty());
}

TEST_F(TextFileTest, FilesWithoutTextAreRefused) {
  EXPECT_THAT(refusal("empty.txt", ""), HasSubstr("empty.txt: is empty"));
  EXPECT_THAT(refusal("latin1.txt", "caf\xE9 noir"), HasSubstr("offset 3"));
  const auto missing = [&] { TextFile(folder / "missing.txt", folder / "cache", {}, DataObserver::none()); };
  EXPECT_THAT(message_of<DataError>(missing), HasSubstr("missing.txt"));
  write_file(folder / "good.txt", "good");
  const Corpus twice(std::vector{folder / "good.txt", folder / "good.txt"}, folder / "cache");
  EXPECT_THAT(twice.documents(), ElementsAre("good", "good"));
}

}  // namespace
}  // namespace caravan::text_file_test
