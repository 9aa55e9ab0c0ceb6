#include "caravan/train/folder/run_folder.h"

#include <array>
#include <barrier>
#include <gmock/gmock.h>
#include <mutex>
#include <set>
#include <sys/syscall.h>
#include <thread>
#include <unistd.h>

#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/formats/checkpoint/manifest.h"
#include "tests/data/support.h"

namespace {

/// The folders and files that were flushed to disk.
struct Flushed {
  std::mutex mutex;
  std::set<std::filesystem::path> paths;
};

Flushed& flushed() {
  static Flushed flushed;
  return flushed;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int fsync(int descriptor) {
  std::error_code error;
  const auto path = std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(descriptor), error);
  {
    const std::lock_guard lock(flushed().mutex);
    flushed().paths.insert(path);
  }
  return static_cast<int>(::syscall(SYS_fsync, descriptor));
}

namespace caravan::run_folder_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

/// Each test has its own working folder, since runs/ is relative to it.
class RunFolderTest : public ::testing::Test {
 protected:
  RunFolderTest() : before_(fs::current_path()) { fs::current_path(folder_.path()); }
  ~RunFolderTest() override { fs::current_path(before_); }

  static Recipe recipe(const std::string& dir = "", const std::string& name = "tiny") {
    Recipe recipe;
    recipe.checkpoint.dir = dir;
    recipe.name = name;
    return recipe;
  }
  static void put_checkpoint(const fs::path& run, const std::string& step = "step_000003") {
    fs::create_directories(run / step);
    write_file(run / step / "manifest.json", "{}");
  }

  TemporaryFolder folder_;
  fs::path before_;
};

TEST_F(RunFolderTest, EachRunTakesTheNextNumber) {
  EXPECT_EQ(open_run_folder(recipe(), false).path, "runs/tiny-1");
  EXPECT_EQ(open_run_folder(recipe(), false).path, "runs/tiny-2");
  EXPECT_TRUE(fs::is_directory("runs/tiny-2"));
  fs::create_directories("runs/tiny-9");
  for (const char* other : {"runs/tiny-x", "runs/tiny-12x", "runs/tiny", "runs/tiny--40", "runs/other-30"}) {
    fs::create_directories(other);
  }
  EXPECT_EQ(open_run_folder(recipe(), false).path, "runs/tiny-10");
  EXPECT_EQ(open_run_folder(recipe("", "other"), false).path, "runs/other-31");
}

/// Otherwise checkpoints that are on disk could be gone after a power failure.
TEST_F(RunFolderTest, TheNameOfANewFolderIsOnDisk) {
  const fs::path here = fs::current_path();
  const auto flushed_by = [&](const Recipe& recipe) {
    flushed().paths.clear();
    open_run_folder(recipe, false);
    return flushed().paths;
  };
  EXPECT_EQ(flushed_by(recipe()), (std::set<fs::path>{here, here / "runs"}));
  EXPECT_EQ(flushed_by(recipe()), std::set<fs::path>{here / "runs"});
  EXPECT_EQ(flushed_by(recipe("a/b/c")), (std::set<fs::path>{here, here / "a", here / "a/b"}));
  EXPECT_EQ(flushed_by(recipe("a/b/c")), std::set<fs::path>{}) << "it exists";
}

TEST_F(RunFolderTest, ResumeTakesTheLastRunThatHasACheckpoint) {
  EXPECT_THAT(message_of<UsageError>([] { open_run_folder(recipe(), true); }),
              AllOf(HasSubstr("runs/tiny-N"), HasSubstr("leave --resume out")));
  EXPECT_EQ(folder_to_resume(recipe()), "");
  put_checkpoint("runs/tiny-2");
  put_checkpoint("runs/tiny-11");
  put_checkpoint("runs/other-20");
  fs::create_directories("runs/tiny-12/step_000001");  // no manifest: not complete
  EXPECT_EQ(open_run_folder(recipe(), true).path, "runs/tiny-11");
  EXPECT_EQ(folder_to_resume(recipe()), "runs/tiny-11");
}

TEST_F(RunFolderTest, AFolderThatHoldsARunOffersResume) {
  EXPECT_EQ(open_run_folder(recipe("a/b"), false).path, "a/b");
  EXPECT_EQ(open_run_folder(recipe("a/b"), false).path, "a/b");  // still empty
  EXPECT_THAT(message_of<UsageError>([] { open_run_folder(recipe("a/b"), true); }), HasSubstr("no checkpoint"));
  write_file("a/b/train.log", "");
  EXPECT_THAT(message_of<UsageError>([] { open_run_folder(recipe("a/b"), false); }),
              AllOf(HasSubstr("holds a run already"), HasSubstr("--resume")));
  put_checkpoint("c");
  EXPECT_THAT(message_of<UsageError>([] { open_run_folder(recipe("c"), false); }), HasSubstr("--resume"));
  EXPECT_EQ(open_run_folder(recipe("c"), true).path, "c");
  EXPECT_EQ(folder_to_resume(recipe("c")), "c");
}

TEST_F(RunFolderTest, AUsedFolderIsRefusedWithoutMakingOne) {
  refuse_used_folder(recipe());
  refuse_used_folder(recipe("a/b"));
  EXPECT_FALSE(fs::exists("a"));
  put_checkpoint("c");
  EXPECT_THAT(message_of<UsageError>([] { refuse_used_folder(recipe("c")); }), HasSubstr("holds a run already"));
}

TEST_F(RunFolderTest, AFolderThatCannotBeMadeIsAnError) {
  write_file("file", "");
  EXPECT_THAT(message_of<Error>([] { open_run_folder(recipe("file/run"), false); }), HasSubstr("file/run"));
  EXPECT_THAT(message_of<Error>([] { open_run_folder(recipe("file"), false); }), HasSubstr("file"));
}

TEST_F(RunFolderTest, TwoAtOnceGetDifferentFolders) {
  constexpr int kRuns = 24;
  std::vector<fs::path> paths(kRuns);
  {
    std::barrier start(kRuns);
    std::vector<std::jthread> threads;
    for (fs::path& path : paths) {
      threads.emplace_back([&] {
        start.arrive_and_wait();
        path = open_run_folder(recipe(), false).path;
      });
    }
  }
  EXPECT_EQ(std::set<fs::path>(paths.begin(), paths.end()).size(), size_t{kRuns});
}

TEST_F(RunFolderTest, OneInUseIsRefusedNamingItsOwner) {
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  const auto owner = HasSubstr("host " + std::string(host.data()) + ", process " + std::to_string(getpid()));
  {
    const RunFolder running = open_run_folder(recipe("a"), false);
    EXPECT_THAT(message_of<UsageError>([] { open_run_folder(recipe("a"), false); }),
                AllOf(HasSubstr("a: is in use by another run"), owner));
    put_checkpoint("a");
    EXPECT_THAT(message_of<UsageError>([] { open_run_folder(recipe("a"), true); }), owner);
    EXPECT_EQ(list_checkpoints("a").size(), 1U) << "readers need no lock";
  }
  EXPECT_EQ(open_run_folder(recipe("a"), true).path, "a");
  put_checkpoint("runs/tiny-1");
  const RunFolder resumed = open_run_folder(recipe(), true);
  EXPECT_THAT(message_of<UsageError>([] { open_run_folder(recipe(), true); }), owner);
  EXPECT_EQ(open_run_folder(recipe(), false).path, "runs/tiny-2") << "a new run is not in its way";
}

TEST_F(RunFolderTest, ResumeSaysWhatItSkipped) {
  put_checkpoint("runs/tiny-2");
  fs::create_directories("runs/tiny-3");
  const RunFolder run = open_run_folder(recipe(), true);
  EXPECT_EQ(run.path, "runs/tiny-2");
  EXPECT_THAT(run.notes, ::testing::ElementsAre(HasSubstr("runs/tiny-3 is newer, but holds no checkpoint")));
}

TEST_F(RunFolderTest, APathThatIsNotUtf8IsRefused) {
  const auto refused = AllOf(HasSubstr("not UTF-8"), HasSubstr("r\\xe9sultat"));
  EXPECT_THAT(message_of<UsageError>([] { open_run_folder(recipe("r\xE9sultat"), false); }), refused);
  EXPECT_THAT(message_of<UsageError>([] { open_run_folder(recipe("", "r\xE9sultat"), false); }), refused);
  EXPECT_FALSE(fs::exists("runs"));
  fs::create_directories("r\xE9sultat");
  fs::current_path("r\xE9sultat");
  EXPECT_THAT(message_of<UsageError>([] { open_run_folder(recipe(), false); }), refused);
  EXPECT_THAT(message_of<UsageError>([] { check_run_path(recipe("below")); }), refused);
  EXPECT_NO_THROW(check_run_path(recipe("/tmp/r\xC3\xA9sultat")));
}

TEST_F(RunFolderTest, TheNewestRunIsByTime) {
  EXPECT_EQ(newest_run(), "");
  put_checkpoint("runs/a-1");
  put_checkpoint("runs/b-1");
  fs::create_directories("runs/empty-1");
  const auto now = fs::file_time_type::clock::now();
  fs::last_write_time("runs/a-1/step_000003", now);
  fs::last_write_time("runs/b-1/step_000003", now - std::chrono::hours(1));
  EXPECT_EQ(newest_run(), "runs/a-1");
  put_checkpoint("runs/b-1", "step_000004");
  fs::last_write_time("runs/b-1/step_000004", now + std::chrono::hours(1));
  EXPECT_EQ(newest_run(), "runs/b-1");
}

}  // namespace
}  // namespace caravan::run_folder_test
