#include "caravan/base/system/file.h"

#include <csignal>
#include <string>
#include <sys/stat.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>

#include "caravan/base/content_hash.h"
#include "caravan/base/json_reader.h"
#include "caravan/base/system/file_lock.h"
#include "caravan/data/tokenizer/tokenizer.h"
#include "caravan/formats/huggingface/hf_config.h"
#include "tests/data/support.h"

namespace caravan::file_test {
namespace {

TEST(MappedFile, MapsTheContent) {
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

TEST(MappedFile, RefusesNonFiles) {
  const TemporaryFolder folder;
  const auto refusal = [](const std::filesystem::path& path) {
    return message_of<DataError>([&] { const MappedFile file(path, "test"); });
  };
  EXPECT_NE(refusal(folder / "missing").find("cannot be opened"), std::string::npos);
  EXPECT_NE(refusal(folder.path()).find("is a folder"), std::string::npos);
  ASSERT_EQ(mkfifo((folder / "fifo").c_str(), 0600), 0);
  EXPECT_NE(refusal(folder / "fifo").find("is not a regular file"), std::string::npos);
}

TEST(OutputFile, ExistsOnlyAfterFinish) {
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

TEST(ContentHash, IsXxh3AndIndependentOfPieces) {
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

TEST(FileLock, ExcludesOthersNamesTheHolderAndDiesWithIt) {
  const TemporaryFolder folder;
  {
    const FileLock first(folder / "lock", "the first", "test");
    ASSERT_TRUE(first.is_held());
    const FileLock second(folder / "lock", "the second", "test");
    EXPECT_FALSE(second.is_held());
    EXPECT_TRUE(second.is_supported());
    EXPECT_EQ(second.holder(), "the first");
    // Another descriptor that is closed does not release it, as it would a lock of the process.
    EXPECT_EQ(read_file(folder / "lock"), "the first");
    EXPECT_FALSE(FileLock(folder / "lock", "the third", "test").is_held());
  }
  FileLock later(folder / "lock", "it", "test");
  EXPECT_TRUE(later.is_held());
  EXPECT_EQ(read_file(folder / "lock"), "it");
  FileLock moved = std::move(later);
  EXPECT_TRUE(moved.is_held());
  EXPECT_FALSE(FileLock(folder / "lock", "other", "test").is_held());
}

TEST(FileLock, IsReleasedByAKill) {
  const TemporaryFolder folder;
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    const FileLock lock(folder / "lock", "child", "test");
    const char byte = lock.is_held() ? 'y' : 'n';
    if (write(ready[1], &byte, 1) == 1) pause();
    _exit(1);
  }
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  EXPECT_EQ(byte, 'y');
  EXPECT_EQ(FileLock(folder / "lock", "parent", "test").holder(), "child");
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_TRUE(FileLock(folder / "lock", "parent", "test").is_held());
  close(ready[0]);
  close(ready[1]);
}

TEST(JsonDepth, IsLimitedInEveryFormat) {
  const TemporaryFolder folder;
  const std::string deep = "{\"a\":" + std::string(400'000, '[');
  write_file(folder / "tokenizer.json", deep);
  EXPECT_NE(message_of<DataError>([&] { Tokenizer::load(folder / "tokenizer.json"); }).find("more than 100 deep"),
            std::string::npos);
  EXPECT_NE(message_of<DataError>([&] { parse_huggingface_config(deep, "config.json"); }).find("more than 100 deep"),
            std::string::npos);
}

TEST(JsonDepth, IsLimitedBeforeParsing) {
  const auto nested = [](size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  EXPECT_NO_THROW(check_json_depth(nested(100), "file", "test"));
  EXPECT_NE(message_of<DataError>([&] {
              check_json_depth(nested(101), "some.json", "test");
            }).find("some.json: nests arrays and objects more than 100 deep, at byte 100"),
            std::string::npos);
  EXPECT_THROW(check_json_depth(std::string(400'000, '{'), "file", "test"), DataError);
  // Neither brackets in strings, also behind escaped quotes, nor adjacent values count.
  EXPECT_NO_THROW(
      check_json_depth("[\"" + std::string(500, '[') + "\\\"" + std::string(500, '{') + "\"]", "file", "test"));
  std::string flat;
  for (int i = 0; i < 500; ++i) flat += "[{}],";
  EXPECT_NO_THROW(check_json_depth(flat, "file", "test"));
}

}  // namespace
}  // namespace caravan::file_test
