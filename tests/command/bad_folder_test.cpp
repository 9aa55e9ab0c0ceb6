// Read-only folders and full disks, in a mount namespace, since root ignores file modes.
#include <gmock/gmock.h>

#include "tests/command/command.h"

namespace caravan::bad_folder_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class BadFolderTest : public CommandTest {
 protected:
  static std::string shell(const Words& words) {
    std::string line;
    for (const std::string& word : words) line += "'" + word + "' ";
    return line;
  }
  std::string train_line(const std::string& name, const std::vector<std::string>& overrides = {}) const {
    return "'" + program() + "' " + shell(tiny(name, 2, set(overrides)));
  }
  /// Runs a line of sh in folder(), where ro is a read-only bind mount.
  Result run_beside_read_only(const std::string& line) const {
    return run(with_own_mounts("cd " + folder().string() +
                               " && mkdir -p rw ro && mount -t tmpfs none rw && mount --bind rw ro && "
                               "mount -o remount,bind,ro ro || exit 99\n" +
                               line));
  }
};

TEST_F(BadFolderTest, ReadOnlyForTheRun) {
  const Result below = run_beside_read_only(train_line("ro/run"));
  EXPECT_EQ(below.code, 5) << below.err;
  EXPECT_THAT(below.err,
              AllOf(HasSubstr("ro/run: cannot be made: Read-only file system"), HasSubstr("do: choose a folder")));
  const Result itself = run_beside_read_only(train_line("ro"));
  EXPECT_EQ(itself.code, 5) << itself.err;
  EXPECT_THAT(itself.err, HasSubstr("ro: cannot be written to: Read-only file system"));
  const Result current = run_beside_read_only("cd ro && " + train_line("run", {"checkpoint.dir="}));
  EXPECT_EQ(current.code, 5) << current.err;
  EXPECT_THAT(current.err, HasSubstr("runs/default-1: cannot be made: Read-only file system"));
}

TEST_F(BadFolderTest, ReadOnlyForOtherOutputs) {
  const std::vector<std::string> lines = {
      "CARAVAN_CACHE=ro/cache " + train_line("run"),
      train_line("dumped") + "--dump ro/dump",
      train_line("traced") + "--trace ro/trace.json",
      "'" + program() + "' tokenizer train text.txt --vocabulary 300 --out ro/tokenizer.json",
  };
  for (const std::string& line : lines) {
    const Result result = run_beside_read_only(line);
    EXPECT_EQ(result.code, 5) << line << "\n" << result.err;
    EXPECT_THAT(result.err, AllOf(HasSubstr("ro/"), HasSubstr("Read-only file system"), HasSubstr("do: ")));
  }
}

TEST_F(BadFolderTest, ReadOnlyForAnExport) {
  ASSERT_EQ(train("run", 1, set({"train.steps=0"})).code, 0);
  const Result result = run_beside_read_only("'" + program() + "' export run --out ro/model");
  EXPECT_EQ(result.code, 5) << result.err;
  EXPECT_THAT(result.err, AllOf(HasSubstr("ro/model"), HasSubstr("Read-only file system"), HasSubstr("do: ")));
}

TEST_F(BadFolderTest, Full) {
  // A checkpoint takes 1.4 MB, so the third does not fit.
  const Result result = run(with_own_mounts(
      "cd " + folder().string() + "\nmkdir full && mount -t tmpfs -o size=3500k none full || exit 99\n" +
      train_line("full/run", {"checkpoint.every=1"}) + "\ncode=$?\nls -a full/run\n'" + program() +
      "' generate full/run --tokens 2 || exit 98\nexit $code"));
  EXPECT_EQ(result.code, 5) << result.err;
  EXPECT_THAT(result.err, AllOf(HasSubstr("[checkpoint] was not written; earlier ones are untouched"),
                                HasSubstr("No space left on device"), HasSubstr("do: free some space")));
  EXPECT_THAT(result.out, AllOf(HasSubstr("step_000002\n"), ::testing::Not(HasSubstr("step_000003\n")),
                                ::testing::Not(HasSubstr(".tmp"))));
}

}  // namespace
}  // namespace caravan::bad_folder_test
