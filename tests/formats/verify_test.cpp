#include "caravan/formats/checkpoint/verify.h"

#include <gmock/gmock.h>

#include <gtest/gtest.h>

#include "caravan/base/content_hash.h"
#include "caravan/base/error.h"
#include "caravan/comm/backends/shared/thread_ranks.h"
#include "caravan/comm/record.h"
#include "tests/data/support.h"

namespace caravan::verify_test {
namespace {

namespace fs = std::filesystem;
using ::testing::Each;
using ::testing::HasSubstr;
using Files = std::map<std::string, ManifestFile>;

TEST(FilesOfRank, EachFileGoesToOneRankAndNoRankHasMuchMore) {
  Files files;
  int64_t total = 0;
  const std::vector<int64_t> sizes{700, 1, 90, 90, 90, 300, 0, 299, 5, 5, 410};
  for (const int64_t bytes : sizes) {
    files["file" + std::to_string(files.size())] = {bytes, ""};
    total += bytes;
  }
  for (int ranks = 1; ranks <= 13; ++ranks) {
    std::map<std::string, int> dealt;
    for (int rank = 0; rank < ranks; ++rank) {
      int64_t load = 0;
      for (const std::string& name : files_of_rank(files, rank, ranks)) {
        ++dealt[name];
        load += files.at(name).bytes;
      }
      EXPECT_LE(load, std::max(total / ranks + 90, int64_t{700})) << rank << " of " << ranks;
    }
    EXPECT_EQ(dealt.size(), files.size());
    for (const auto& [name, times] : dealt) EXPECT_EQ(times, 1) << name;
  }
}

class VerifyFiles : public ::testing::Test {
 protected:
  VerifyFiles() {
    for (int i = 0; i < 5; ++i) {
      const std::string name = "file" + std::to_string(i);
      const std::string text(static_cast<size_t>(100 * i), static_cast<char>('a' + i));
      write_file(folder_ / name, text);
      files_[name] = {static_cast<int64_t>(text.size()), content_hash(text).hex()};
    }
  }

  /// The messages of E on all ranks.
  template <typename E>
  std::vector<std::string> refusals(int ranks) const {
    std::vector<std::string> messages(static_cast<size_t>(ranks));
    run_thread_ranks(ranks,
                     [&](const auto& world) {
                       messages[static_cast<size_t>(world->rank())] =
                           message_of<E>([&] { verify_files(folder_.path(), files_, *world); });
                     },
                     {.timeout = std::chrono::seconds(10)});
    return messages;
  }

  const TemporaryFolder folder_;
  Files files_;
};

TEST_F(VerifyFiles, WhatIsSoundPassesOnAnyNumberOfRanks) {
  verify_files(folder_.path(), files_, *make_record_world(0, 1));
  for (const int ranks : {1, 2, 3, 7}) {
    run_thread_ranks(ranks, [&](const auto& world) { verify_files(folder_.path(), files_, *world); },
                     {.timeout = std::chrono::seconds(10)});
  }
}

TEST_F(VerifyFiles, AnyDamagedFileIsNamedOnAllRanks) {
  for (const auto& [name, listed] : Files(files_)) {
    const std::string sound = read_file(folder_ / name);
    write_file(folder_ / name, sound + "x");
    for (const int ranks : {1, 2, 3, 7}) {
      const std::vector<std::string> messages = refusals<DataError>(ranks);
      EXPECT_THAT(messages.front(), HasSubstr((folder_ / name).string() + ": does not have the hash"));
      EXPECT_THAT(messages, Each(messages.front()));
    }
    write_file(folder_ / name, sound);
  }
}

TEST_F(VerifyFiles, AFileThatOneRankCannotReadIsAnErrorOnAllRanks) {
  fs::remove(folder_ / "file3");
  EXPECT_THAT(refusals<DataError>(3), Each(HasSubstr("file3: cannot be opened")));
  fs::create_directory(folder_ / "file3");
  EXPECT_THAT(refusals<DataError>(3), Each(HasSubstr("file3: is a folder")));
}

}  // namespace
}  // namespace caravan::verify_test
