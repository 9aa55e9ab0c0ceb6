#include "caravan/data/windows/cache.h"

#include <atomic>
#include <cerrno>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <thread>
#include <unistd.h>

#include <gtest/gtest.h>

#include "caravan/data/tokenizer/tokenizer.h"
#include "caravan/data/windows/token_file.h"
#include "tests/data/support.h"

namespace {

enum class Locks { work, work_as_on_nfs, are_missing };

/// What this file system does.
Locks& locks() {
  static Locks locks = Locks::work;
  return locks;
}

}  // namespace

// The calls of the cache go through this program, so that a test sees it on other file systems.
extern "C" __attribute__((visibility("default"))) int flock(int descriptor, int operation) noexcept {
  const bool is_read_only = (fcntl(descriptor, F_GETFL) & O_ACCMODE) == O_RDONLY;
  const bool is_refused = locks() == Locks::work_as_on_nfs && (operation & LOCK_EX) != 0 && is_read_only;
  if (locks() == Locks::are_missing || is_refused) {
    errno = is_refused ? EBADF : ENOLCK;
    return -1;
  }
  return static_cast<int>(syscall(SYS_flock, descriptor, operation));
}

namespace caravan::cache_test {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::UnorderedElementsAre;

const std::string kHash(31, 'a');

/// A file of the cache with `bytes` bytes, last used at `used_s`.
fs::path put(const TemporaryFolder& folder, const std::string& name, size_t bytes, int64_t used_s) {
  write_file(folder / name, std::string(bytes, 'x'));
  const timespec times[2] = {{.tv_sec = used_s, .tv_nsec = 0}, {.tv_sec = used_s, .tv_nsec = 0}};
  EXPECT_EQ(utimensat(AT_FDCWD, (folder / name).c_str(), times, 0), 0);
  return folder / name;
}

std::vector<std::string> names(const fs::path& folder) {
  std::vector<std::string> all;
  for (const auto& entry : fs::directory_iterator(folder)) all.push_back(entry.path().filename().string());
  return all;
}

std::vector<std::string> listed(const TemporaryFolder& folder) {
  std::vector<std::string> all;
  for (const CacheFile& file : list_cache(folder.path())) all.push_back(file.path.filename().string());
  return all;
}

TEST(CacheFolder, TheLeastRecentlyUsedGoFirst) {
  const TemporaryFolder folder;
  put(folder, kHash + "1.tokens", 100, 3000);
  put(folder, kHash + "2.tokens", 200, 1000);
  put(folder, "tokenizer-" + kHash + "3.json", 50, 2000);
  put(folder, "hardware-" + kHash + "4.toml", 20, 4000);
  put(folder, "notes.txt", 1000, 1);
  put(folder, "short.tokens", 1000, 1);
  EXPECT_THAT(listed(folder), ElementsAre(kHash + "2.tokens", "tokenizer-" + kHash + "3.json", kHash + "1.tokens",
                                          "hardware-" + kHash + "4.toml"));
  const CacheRemoval removal = trim_cache(folder.path(), 149);
  EXPECT_EQ(removal.files, 2);
  EXPECT_EQ(removal.bytes, 250);
  EXPECT_EQ(removal.bytes_left, 120);
  EXPECT_THAT(names(folder.path()),
              UnorderedElementsAre(kHash + "1.tokens", "hardware-" + kHash + "4.toml", "notes.txt", "short.tokens"));
  EXPECT_EQ(clear_cache(folder / "missing").files, 0);
}

TEST(CacheFolder, WithoutALimitNothingIsRemoved) {
  const TemporaryFolder folder;
  put(folder, kHash + "1.tokens", 100, 1000);
  const CacheRemoval removal = trim_cache(folder.path(), std::nullopt);
  EXPECT_EQ(removal.files, 0);
  EXPECT_EQ(removal.bytes_left, 100);
}

TEST(CacheFolder, AFileInUseStays) {
  const TemporaryFolder folder;
  const fs::path old = put(folder, kHash + "1.tokens", 100, 1000);
  put(folder, kHash + "2.tokens", 100, 2000);
  auto use = use_cache_file(old);
  ASSERT_NE(use, nullptr);
  EXPECT_THAT(listed(folder), ElementsAre(kHash + "2.tokens", kHash + "1.tokens")) << "using it made it the newest";
  EXPECT_TRUE(list_cache(folder.path()).back().in_use);
  EXPECT_EQ(clear_cache(folder.path()).bytes_left, 100);
  EXPECT_THAT(names(folder.path()), ElementsAre(kHash + "1.tokens"));
  use.reset();
  EXPECT_EQ(clear_cache(folder.path()).bytes_left, 0);
  EXPECT_EQ(use_cache_file(old), nullptr);
}

TEST(CacheFolder, ATokenFileIsInUseWhileItIsOpen) {
  const TemporaryFolder folder;
  const std::vector<std::string_view> text{"some text"};
  {
    const TokenFile file = open_or_build(folder.path(), text, Tokenizer::bytes());
    clear_cache(folder.path());
    EXPECT_TRUE(fs::exists(file.path()));
  }
  clear_cache(folder.path());
  EXPECT_THAT(names(folder.path()), ElementsAre());
}

/// A killed process leaves a lock file that nobody holds, and a half-written file.
TEST(CacheFolder, LeftoversOfDeadProcessesAreRemoved) {
  const TemporaryFolder folder;
  const std::string half = kHash + "1.tokens.0123456789abcdef.tmp";
  put(folder, half, 10, 1000);
  put(folder, kHash + "1.tokens.lock", 0, 1000);
  put(folder, "mine.0123456789abcdef.tmp", 10, 1000);
  trim_cache(folder.path(), 1 << 20);
  EXPECT_THAT(names(folder.path()), ElementsAre("mine.0123456789abcdef.tmp"));

  // The half-written file of a process that is still building is not touched.
  put(folder, half, 10, 1000);
  const auto lock = CacheLock::try_create(put(folder, kHash + "1.tokens.lock", 0, 1000));
  ASSERT_TRUE(lock);
  clear_cache(folder.path());
  EXPECT_TRUE(fs::exists(folder / half));
}

class OtherFileSystem : public ::testing::Test {
 protected:
  ~OtherFileSystem() override { locks() = Locks::work; }

  const TemporaryFolder folder;
};

/// There an exclusive lock needs a descriptor for writing.
TEST_F(OtherFileSystem, OnNfsFilesInUseStay) {
  locks() = Locks::work_as_on_nfs;
  const fs::path used = put(folder, kHash + "1.tokens", 100, 1000);
  put(folder, kHash + "2.tokens", 100, 1000);
  const auto use = use_cache_file(used);
  const auto lock = CacheLock::try_create(put(folder, kHash + "3.tokens.lock", 0, 1000));
  ASSERT_TRUE(lock);
  EXPECT_FALSE(CacheLock::try_exclusive(used));
  clear_cache(folder.path());
  EXPECT_THAT(names(folder.path()), UnorderedElementsAre(kHash + "1.tokens", kHash + "3.tokens.lock"));
}

TEST_F(OtherFileSystem, WithoutLocksTheCacheWorksAndTheLockFileOfABuilderStays) {
  locks() = Locks::are_missing;
  const auto lock = CacheLock::try_create(put(folder, kHash + "1.tokens.lock", 0, 1000));
  ASSERT_TRUE(lock);
  EXPECT_FALSE(lock->excludes_others());
  put(folder, kHash + "2.tokens", 100, 1000);
  EXPECT_EQ(clear_cache(folder.path()).files, 1);
  EXPECT_THAT(names(folder.path()), ElementsAre(kHash + "1.tokens.lock"));
}

TEST_F(OtherFileSystem, AFileThatMayNotBeWrittenIsNotLockedExclusively) {
  if (geteuid() == 0) GTEST_SKIP() << "root may write everything";
  const fs::path path = put(folder, kHash + "1.tokens", 100, 1000);
  fs::permissions(path, fs::perms::owner_read);
  EXPECT_FALSE(CacheLock::try_exclusive(path));
  EXPECT_TRUE(CacheLock::share(path));
}

/// Another process may trim the cache as soon as the file has its name.
TEST(CacheFolder, AFileIsInUseFromItsCreation) {
  const TemporaryFolder folder;
  const fs::path path = folder / (kHash + "1.tokens");
  TokenFileWriter writer(path, 256);
  auto use = writer.finish(0, {});
  clear_cache(folder.path());
  EXPECT_TRUE(fs::exists(path));
  use.reset();
  clear_cache(folder.path());
  EXPECT_FALSE(fs::exists(path));
}

TEST(FindOrBuild, RemovesItsOwnHalfWrittenFiles) {
  const TemporaryFolder folder;
  const fs::path path = folder / (kHash + "1.tokens");
  write_file(path.string() + ".0123456789abcdef.tmp", "half");
  bool is_built = false;
  find_or_build(
      path, [&] { return is_built; }, [&] { is_built = true; }, DataObserver::none());
  EXPECT_THAT(names(folder.path()), ElementsAre());
}

TEST(FindOrBuild, OneBuildsAndTheOthersWait) {
  const TemporaryFolder folder;
  const fs::path path = folder / (kHash + "1.tokens");
  std::atomic<int> num_building{0};
  std::atomic<int> num_built{0};
  const auto build = [&] {
    EXPECT_EQ(++num_building, 1);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    write_file(path, "built");
    ++num_built;
    --num_building;
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 6; ++i) {
    threads.emplace_back([&] {
      find_or_build(
          path, [&] { return fs::exists(path); }, build, DataObserver::none());
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(num_built, 1);
  EXPECT_THAT(names(folder.path()), ElementsAre(path.filename().string()));
}

/// A look at all files costs as many operations as there are files: it must not follow each file that is added.
TEST(CacheTrimmer, LooksAtTheCacheOnceForManyFiles) {
  const TemporaryFolder folder;
  constexpr int64_t kBytes = 10;
  constexpr int64_t kLimit = 300 * kBytes * 10;
  CacheTrimmer trimmer(folder.path(), kLimit);
  for (int i = 0; i < 6'000; ++i) {
    const std::string number = std::to_string(i);
    write_file(folder / (std::string(32 - number.size(), '0') + number + ".tokens"), std::string(kBytes, 'x'));
    trimmer.added(kBytes);
    if (i % 1000 == 999) {
      EXPECT_LE(folder.count_files() * kBytes, kLimit);
      EXPECT_GT(folder.count_files() * kBytes, i < kLimit / kBytes ? i * kBytes : kLimit * 9 / 10);
    }
  }
  EXPECT_LE(trimmer.num_trims(), 6'000 / 40);
  CacheTrimmer unlimited(folder.path(), std::nullopt);
  unlimited.added(int64_t{1} << 60);
  EXPECT_EQ(unlimited.num_trims(), 0);
}

struct Cancelled {};

/// Throws after `calls` calls with bytes.
class CancelAfter final : public DataObserver {
 public:
  explicit CancelAfter(int calls) : left_(calls) {}
  void advance(int64_t bytes) override {
    if (bytes > 0 && left_-- == 0) throw Cancelled();
  }

 private:
  int left_;
};

TEST(FindOrBuild, ACancelledTokenizationLeavesNothing) {
  const TemporaryFolder folder;
  const std::string text(1 << 20, 'x');
  const std::vector<std::string_view> documents{text};
  CancelAfter cancel(2);
  EXPECT_THROW(open_or_build(folder.path(), documents, Tokenizer::bytes(), cancel), Cancelled);
  EXPECT_THAT(names(folder.path()), ElementsAre());
}

}  // namespace
}  // namespace caravan::cache_test
