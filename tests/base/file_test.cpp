#include "caravan/base/file.h"

#include <string>
#include <sys/stat.h>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "caravan/base/content_hash.h"
#include "tests/data/support.h"

namespace caravan {
namespace {

TEST(MappedFile, IsTheContent) {
  const TemporaryFolder folder;
  write_file(folder / "a", "content");
  write_file(folder / "empty", "");
  MappedFile first(folder / "a", "test");
  EXPECT_EQ(first.text(), "content");
  MappedFile moved = std::move(first);
  EXPECT_EQ(moved.text(), "content");
  moved = MappedFile(folder / "empty", "test");
  EXPECT_TRUE(moved.bytes().empty());
}

TEST(MappedFile, RefusesWhatIsNoFile) {
  const TemporaryFolder folder;
  const auto refusal = [](const std::filesystem::path& path) {
    return message_of<DataError>([&] { const MappedFile file(path, "test"); });
  };
  EXPECT_NE(refusal(folder / "missing").find("cannot be opened"), std::string::npos);
  EXPECT_NE(refusal(folder.path()).find("is a folder"), std::string::npos);
  ASSERT_EQ(mkfifo((folder / "fifo").c_str(), 0600), 0);
  EXPECT_NE(refusal(folder / "fifo").find("is not a regular file"), std::string::npos);
}

TEST(OutputFile, IsThereOnlyWhenItIsFinished) {
  const TemporaryFolder folder;
  { OutputFile(folder / "a", "test").append(std::string_view("lost")); }
  EXPECT_EQ(folder.count_files(), 0);
  OutputFile file(folder / "a", "test");
  file.reserve(1000);
  file.append(std::string_view("456"));
  file.write_at(1, std::as_bytes(std::span("x", 1)));
  file.append(std::string_view("7"));
  file.finish();
  EXPECT_EQ(read_file(folder / "a"), "4x67");
}

TEST(OutputFile, FinishAsReplaces) {
  const TemporaryFolder folder;
  write_file(folder / "a", "old");
  OutputFile file(name_aside(folder / "a"), "test");
  file.append(std::string_view("new"));
  EXPECT_EQ(read_file(folder / "a"), "old");
  file.finish_as(folder / "a");
  EXPECT_EQ(read_file(folder / "a"), "new");
  EXPECT_EQ(folder.count_files(), 1);

  OutputFile nowhere(name_aside(folder / "b"), "test");
  EXPECT_THROW(nowhere.finish_as(folder / "missing/b"), ResourceError);
  EXPECT_EQ(folder.count_files(), 1);
  EXPECT_THROW(OutputFile(folder / "missing/b", "test"), ResourceError);
}

TEST(OutputFile, ManyWritersOfOneFile) {
  const TemporaryFolder folder;
  std::vector<std::thread> writers;
  for (int i = 0; i < 6; ++i) {
    writers.emplace_back([&] {
      for (int k = 0; k < 5; ++k) write_file_durably(folder / "a", "the same", "test");
    });
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(read_file(folder / "a"), "the same");
  EXPECT_EQ(folder.count_files(), 1);
}

TEST(ContentHash, IsXxh3AndDoesNotDependOnCuts) {
  // XXH3_128bits of "": the value of the reference implementation.
  EXPECT_EQ(content_hash("").hex(), "99aa06d3014798d86001c324468d497f");
  std::string text;
  for (int i = 0; i < 1000; ++i) text += static_cast<char>(i * 7);
  for (const size_t cut : {0, 1, 240, 241, 999, 1000}) {
    ContentHasher hasher;
    hasher.update(std::string_view(text).substr(0, cut));
    hasher.update(std::string_view(text).substr(cut));
    EXPECT_EQ(hasher.value(), content_hash(text)) << cut;
  }
  ContentHasher number;
  number.update(uint64_t{0x0807060504030201});
  EXPECT_EQ(number.value(), content_hash("\1\2\3\4\5\6\7\10"));
}

}  // namespace
}  // namespace caravan
