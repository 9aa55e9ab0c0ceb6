#include "caravan/data/files/text_paths.h"

#include <gmock/gmock.h>

#include <gtest/gtest.h>

#include "tests/data/support.h"

namespace caravan::text_paths_test {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class TextPaths : public ::testing::Test {
 protected:
  TextPaths() {
    for (const char* name : {"b.txt", "a.jsonl", "c.txt.gz", "image.png", ".hidden.txt", "sub/deep/d.md", "[x].txt"}) {
      fs::create_directories((folder / name).parent_path());
      write_file(folder / name, "text");
    }
  }
  std::vector<std::string> found(const std::string& path) const {
    std::vector<std::string> names;
    for (const fs::path& file : text_files(folder / path)) {
      names.push_back(file.lexically_normal().lexically_relative(folder.path()).string());
    }
    return names;
  }
  const TemporaryFolder folder;
};

TEST_F(TextPaths, AFolderMeansTheTextsBelowIt) {
  EXPECT_THAT(found("."), ElementsAre("[x].txt", "a.jsonl", "b.txt", "c.txt.gz", "sub/deep/d.md"));
  EXPECT_THAT(found("sub"), ElementsAre("sub/deep/d.md"));
}

TEST_F(TextPaths, APatternMeansWhatMatches) {
  EXPECT_THAT(found("?.txt"), ElementsAre("b.txt"));
  EXPECT_THAT(found("[a-b].*"), ElementsAre("a.jsonl", "b.txt"));
  EXPECT_THAT(found("su*"), ElementsAre("sub/deep/d.md"));
  EXPECT_THAT(found("*.csv"), IsEmpty());
}

TEST_F(TextPaths, AFileIsItself) {
  EXPECT_THAT(found("image.png"), ElementsAre("image.png")) << "what it is, is said where it is read";
  EXPECT_THAT(found("[x].txt"), ElementsAre("[x].txt")) << "also with a name like a pattern";
  EXPECT_THAT(found("missing.txt"), IsEmpty());
}

TEST_F(TextPaths, FoldersWithoutTextsAreRefused) {
  fs::create_directories(folder / "empty");
  EXPECT_THAT(message_of<DataError>([&] { text_files(folder / "empty"); }),
              HasSubstr("without files that end in .txt"));
}

}  // namespace
}  // namespace caravan::text_paths_test
