#include "caravan/train/run_folder.h"

#include <gmock/gmock.h>

#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "tests/data/support.h"

namespace caravan {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

/// Tests of runs/ need a current folder of their own.
class RunFolder : public ::testing::Test {
 protected:
  RunFolder() : before_(fs::current_path()) { fs::current_path(folder_.path()); }
  ~RunFolder() override { fs::current_path(before_); }

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

TEST_F(RunFolder, EachRunTakesTheNextNumber) {
  EXPECT_EQ(choose_run_folder(recipe(), false), "runs/tiny-1");
  EXPECT_EQ(choose_run_folder(recipe(), false), "runs/tiny-2");
  EXPECT_TRUE(fs::is_directory("runs/tiny-2"));
  fs::create_directories("runs/tiny-9");
  for (const char* other : {"runs/tiny-x", "runs/tiny-12x", "runs/tiny", "runs/tiny--40", "runs/other-30"}) {
    fs::create_directories(other);
  }
  EXPECT_EQ(choose_run_folder(recipe(), false), "runs/tiny-10");
  EXPECT_EQ(choose_run_folder(recipe("", "other"), false), "runs/other-31");
}

TEST_F(RunFolder, ResumeTakesTheLastRunThatHasACheckpoint) {
  EXPECT_THAT(message_of<UsageError>([] { choose_run_folder(recipe(), true); }),
              AllOf(HasSubstr("runs/tiny-N"), HasSubstr("leave --resume out")));
  put_checkpoint("runs/tiny-2");
  put_checkpoint("runs/tiny-11");
  put_checkpoint("runs/other-20");
  fs::create_directories("runs/tiny-12/step_000001");  // no manifest: not complete
  EXPECT_EQ(choose_run_folder(recipe(), true), "runs/tiny-11");
}

TEST_F(RunFolder, AFolderThatHoldsARunOffersResume) {
  EXPECT_EQ(choose_run_folder(recipe("a/b"), false), "a/b");
  EXPECT_EQ(choose_run_folder(recipe("a/b"), false), "a/b");  // empty still
  EXPECT_THAT(message_of<UsageError>([] { choose_run_folder(recipe("a/b"), true); }), HasSubstr("no checkpoint"));
  write_file("a/b/train.log", "");
  EXPECT_THAT(message_of<UsageError>([] { choose_run_folder(recipe("a/b"), false); }),
              AllOf(HasSubstr("holds a run already"), HasSubstr("--resume")));
  put_checkpoint("c");
  EXPECT_THAT(message_of<UsageError>([] { choose_run_folder(recipe("c"), false); }), HasSubstr("--resume"));
  EXPECT_EQ(choose_run_folder(recipe("c"), true), "c");
}

TEST_F(RunFolder, AFolderThatCannotBeMadeIsAnError) {
  write_file("file", "");
  EXPECT_THAT(message_of<Error>([] { choose_run_folder(recipe("file/run"), false); }), HasSubstr("file/run"));
  EXPECT_THAT(message_of<Error>([] { choose_run_folder(recipe("file"), false); }), HasSubstr("file"));
}

TEST_F(RunFolder, TheNewestRunIsByTime) {
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
}  // namespace caravan
