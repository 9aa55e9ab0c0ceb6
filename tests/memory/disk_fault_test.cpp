// What goes wrong with disks and folders: each is named, and nothing is left behind.
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <functional>
#include <gmock/gmock.h>
#include <string>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>

#include "caravan/base/content_hash.h"
#include "caravan/base/error.h"
#include "caravan/memory/disk/folder.h"
#include "caravan/memory/disk_store.h"
#include "tests/data/support.h"
#include "tests/memory/disk_support.h"

namespace caravan::testing::disk_fault_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kPage = DiskStore::kPage;

/// The only file of the only store in `folder`.
std::filesystem::path only_file(const DiskFolder& folder) {
  const auto files = folder.files();
  EXPECT_EQ(files.size(), 1U);
  return files.at(0);
}

void overwrite(const std::filesystem::path& path, int64_t offset, const std::string& text) {
  const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_GE(file, 0);
  ASSERT_EQ(::pwrite(file, text.data(), text.size(), offset), static_cast<ssize_t>(text.size()));
  ASSERT_EQ(::fsync(file), 0);
  ::close(file);
}

TEST(DiskFault, AFlippedPageIsNamed) {
  for (const auto& way : DiskFolder::kWays) {
    SCOPED_TRACE(way.name);
    const DiskFolder folder(way);
    DiskStore store({.folders = {folder.path()}});
    const DiskStore::Block block = store.make(3 * kPage + 100);
    const AlignedMemory written(block.bytes, 5);
    const AlignedMemory found(block.bytes);
    store.write(block, 0, written.data(), block.bytes).wait();
    const auto file = only_file(folder);
    auto page = written.content();
    page.erase(page.begin(), page.begin() + kPage);
    page.resize(static_cast<size_t>(kPage));
    const std::string was = content_hash(page).hex();
    page[70'000] ^= std::byte{1};
    overwrite(file, kPage + 70'000, std::string(1, static_cast<char>(page[70'000])));
    const Event event = store.read(block, 0, found.data(), block.bytes);
    for (int time = 0; time < 2; ++time) {
      EXPECT_THAT(message_of<DataError>([&] { event.wait(); }),
                  AllOf(HasSubstr(file.string()), HasSubstr("offset 1048576"), HasSubstr(was),
                        HasSubstr(content_hash(page).hex()), HasSubstr("restart from the last checkpoint")));
    }
    EXPECT_NO_THROW(store.read(block, 2 * kPage, found.data(), kPage + 100).wait()) << "other pages are as they were";
    // The last page ends within a sector.
    overwrite(file, 3 * kPage + 99,
              std::string(1, static_cast<char>(~static_cast<unsigned>(written.content().back()))));
    EXPECT_THAT(message_of<DataError>([&] { store.read(block, 3 * kPage, found.data(), 100).wait(); }),
                HasSubstr("offset 3145728"));
    store.write(block, 0, written.data(), block.bytes).wait();
    store.read(block, 0, found.data(), block.bytes).wait();
    EXPECT_TRUE(found.content() == written.content());
  }
}

TEST(DiskFault, AShortenedFileIsNamed) {
  for (const auto& way : DiskFolder::kWays) {
    SCOPED_TRACE(way.name);
    const DiskFolder folder(way);
    DiskStore store({.folders = {folder.path()}});
    const DiskStore::Block block = store.make(3 * kPage);
    const AlignedMemory memory(block.bytes, 5);
    store.write(block, 0, memory.data(), block.bytes).wait();
    for (const int64_t bytes : {kPage + 10'000, kPage}) {  // within a page, and at the end of one
      std::filesystem::resize_file(only_file(folder), static_cast<uintmax_t>(bytes));
      EXPECT_NO_THROW(store.read(block, 0, memory.data(), kPage).wait());
      EXPECT_THAT(message_of<DataError>([&] { store.read(block, kPage, memory.data(), kPage).wait(); }),
                  AllOf(HasSubstr(only_file(folder).string()), HasSubstr("offset 1048576"), HasSubstr("shortened")));
    }
  }
}

/// Limits the size of files while it lives.
class FileLimit {
 public:
  explicit FileLimit(int64_t bytes) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    struct rlimit limit = before_;
    limit.rlim_cur = static_cast<rlim_t>(bytes);
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileLimit() { ::setrlimit(RLIMIT_FSIZE, &before_); }
  FileLimit(const FileLimit&) = delete;
  FileLimit& operator=(const FileLimit&) = delete;

 private:
  struct rlimit before_ {};
};

TEST(DiskFault, AWriteThatFailsIsNamed) {
  for (const auto& way : DiskFolder::kWays) {
    SCOPED_TRACE(way.name);
    const DiskFolder folder(way);
    DiskStore store({.folders = {folder.path()}});
    const DiskStore::Block block = store.make(4 * kPage);
    const AlignedMemory memory(block.bytes, 9);
    {
      const FileLimit limit(2 * kPage);
      EXPECT_THAT(
          message_of<ResourceError>([&] { store.write(block, 0, memory.data(), block.bytes).wait(); }),
          AllOf(HasSubstr(only_file(folder).string()), HasSubstr("a write of 1.0 MiB fails: File too large"),
                ::testing::AnyOf(HasSubstr("offset 2097152"), HasSubstr("offset 3145728")), HasSubstr("ulimit -f")));
    }
    store.write(block, 0, memory.data(), block.bytes).wait();
  }
}

TEST(DiskFault, ADiskThatIsFullIsNamedBeforeAnythingIsWritten) {
  const DiskFolder folder(DiskFolder::kWays[0]);
  constexpr int64_t kMuch = int64_t{1} << 60;
  EXPECT_THAT(message_of<ResourceError>([&] { DiskStore({.folders = {folder.path()}, .expected_bytes = kMuch}); }),
              AllOf(HasSubstr(folder.path().string()), HasSubstr("(1152921504606846976 bytes) are needed"),
                    HasSubstr("bytes) are free"), HasSubstr("free some space")));
  EXPECT_TRUE(folder.files().empty());
  DiskStore store({.folders = {folder.path()}});
  const DiskStore::Block block = store.make(kPage);
  EXPECT_THAT(message_of<ResourceError>([&] { store.make(kMuch); }),
              AllOf(HasSubstr(folder.path().string()), HasSubstr("are needed"), HasSubstr("bytes) are free")));
  {
    const FileLimit limit(2 * kPage);
    EXPECT_THAT(message_of<ResourceError>([&] { store.make(2 * kPage); }),
                AllOf(HasSubstr(only_file(folder).string()), HasSubstr("a file of 3.0 MiB is needed"),
                      HasSubstr("2.0 MiB (2097152 bytes)"), HasSubstr("ulimit -f")));
  }
  EXPECT_EQ(std::filesystem::file_size(only_file(folder)), static_cast<uintmax_t>(kPage));
  EXPECT_EQ(store.bytes_held(), kPage);
  const AlignedMemory memory(3 * kPage, 4);
  store.write(block, 0, memory.data(), kPage).wait();
  store.write(store.make(3 * kPage), 0, memory.data(), 3 * kPage).wait();
}

TEST(DiskFault, FoldersThatCannotBeUsedAreNamed) {
  const DiskFolder folder(DiskFolder::kWays[0]);
  const auto made_in = [](const std::filesystem::path& path) { return [path] { DiskStore({.folders = {path}}); }; };
  write_file(folder.path() / "file", "x");
  EXPECT_THAT(message_of<UsageError>(made_in(folder.path() / "file")),
              AllOf(HasSubstr((folder.path() / "file").string()), HasSubstr("is not a folder")));
  EXPECT_THAT(message_of<UsageError>(made_in(folder.path() / "a/b")),
              AllOf(HasSubstr((folder.path() / "a/b").string()), HasSubstr("cannot be made"),
                    HasSubstr((folder.path() / "a").string() + " is not a folder")));
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "a"));
  // Nobody may make files there, not even root.
  EXPECT_THAT(message_of<ResourceError>(made_in("/sys/kernel")),
              AllOf(HasSubstr("/sys/kernel"), HasSubstr("may be written")));
  EXPECT_THAT(message_of<ResourceError>(made_in("/sys/kernel/new")), HasSubstr("/sys/kernel/new: cannot be made"));
  EXPECT_THAT(message_of<UsageError>([] { DiskStore({}); }), HasSubstr("folders"));
  EXPECT_THAT(message_of<UsageError>(made_in("")), HasSubstr("empty name"));
  made_in(folder.path() / "new/")();
  EXPECT_TRUE(std::filesystem::is_directory(folder.path() / "new"));
}

TEST(DiskFault, NetworkFileSystemsAreKnown) {
  for (const char* type : {"nfs", "nfs4", "cifs", "smb3", "9p", "lustre", "fuse.sshfs", "fuse.rclone", "ceph"}) {
    EXPECT_TRUE(disk::is_network_type(type)) << type;
  }
  for (const char* type : {"ext4", "xfs", "btrfs", "overlay", "tmpfs", "fuseblk", "fuse.fuse-overlayfs"}) {
    EXPECT_FALSE(disk::is_network_type(type)) << type;
  }
  EXPECT_EQ(disk::file_system_of("/proc").type, "proc") << "named by the list of mounts";
  EXPECT_EQ(disk::file_system_of("/dev/shm").type, "tmpfs");
}

/// A process with a store in `folder`, which lives until it is killed.
pid_t process_with_store(const std::filesystem::path& folder) {
  int ready[2];
  EXPECT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    DiskStore store({.folders = {folder}, .owner = "rank_0"});
    const AlignedMemory memory(kPage, 1);
    store.write(store.make(kPage), 0, memory.data(), kPage).wait();
    if (::write(ready[1], "y", 1) == 1) ::pause();
    ::_exit(1);
  }
  char byte = 0;
  EXPECT_EQ(::read(ready[0], &byte, 1), 1);
  ::close(ready[0]);
  ::close(ready[1]);
  return child;
}

TEST(DiskFault, WhatAKilledProcessLeavesIsRemovedAndWhatALivingOneHasIsNot) {
  const DiskFolder folder(DiskFolder::kWays[0]);
  const pid_t child = process_with_store(folder.path());
  const auto its_file = only_file(folder);
  EXPECT_THAT(its_file.string(), HasSubstr("-" + std::to_string(child) + "-"));
  write_file(folder.path() / "caravan-notes.txt", "of a user");
  write_file(folder.path() / "mine.blocks", "of a user");
  {
    DiskStore store({.folders = {folder.path()}, .owner = "rank_0"});
    const DiskStore other({.folders = {folder.path()}, .owner = "rank_0"});
    EXPECT_EQ(folder.files().size(), 5U);
    EXPECT_TRUE(std::filesystem::exists(its_file));
    const DiskStore::Block block = store.make(kPage);
    const AlignedMemory memory(kPage, 8);
    const AlignedMemory found(kPage);
    store.write(block, 0, memory.data(), kPage).wait();
    store.read(block, 0, found.data(), kPage).wait();
    EXPECT_TRUE(found.content() == memory.content());
  }
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_TRUE(std::filesystem::exists(its_file));
  const DiskStore store({.folders = {folder.path()}});
  EXPECT_FALSE(std::filesystem::exists(its_file));
  EXPECT_EQ(folder.files().size(), 3U) << "that of the store, and those of the user";
}

}  // namespace
}  // namespace caravan::testing::disk_fault_test
