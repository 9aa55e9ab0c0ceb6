// The files on disk at every moment of a save. The calls that flush, rename and delete files go through this program,
// so that a test sees their order and can end the process before any of them.
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <mutex>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <tuple>
#include <unistd.h>

#include <gtest/gtest.h>

#include "caravan/formats/checkpoint/background_save.h"
#include "caravan/formats/checkpoint/checkpoint.h"
#include "caravan/formats/checkpoint/publish.h"
#include "tests/data/support.h"
#include "tests/formats/pieces.h"

namespace {

namespace fs = std::filesystem;

/// Writes down the calls on paths below `root`.
struct Calls {
  std::mutex mutex;
  fs::path root;  ///< empty: nothing is written down
  std::vector<std::string> made;
  int64_t die_before = -1;   ///< ends the process before this call
  bool can_exchange = true;  ///< whether this file system exchanges two names
  bool can_prune = true;     ///< whether a checkpoint can be renamed to what is being deleted
  bool exchange_is_refused() const { return !root.empty() && !can_exchange; }

  std::string shown(const fs::path& path) const { return path == root ? "." : path.lexically_relative(root).string(); }
  void add(const std::string& verb, const fs::path& path, const fs::path& to = {}) {
    const std::lock_guard lock(mutex);
    if (root.empty() || !path.string().starts_with(root.string())) return;
    if (static_cast<int64_t>(made.size()) == die_before) ::_exit(0);
    made.push_back(verb + " " + shown(path) + (to.empty() ? "" : " to " + shown(to)));
  }
};

Calls& calls() {
  static Calls calls;
  return calls;
}

fs::path path_of(int descriptor) {
  std::error_code error;
  return fs::read_symlink("/proc/self/fd/" + std::to_string(descriptor), error);
}

fs::path path_at(int folder, const char* name) {
  return fs::path(name).is_absolute() || folder == AT_FDCWD ? fs::path(name) : path_of(folder) / name;
}

}  // namespace

extern "C" {

#define EXPORTED __attribute__((visibility("default")))

EXPORTED int fsync(int descriptor) {
  calls().add("fsync", path_of(descriptor));
  return static_cast<int>(::syscall(SYS_fsync, descriptor));
}

EXPORTED int renameat2(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) noexcept {
  if (flags != 0 && calls().exchange_is_refused()) {
    errno = EINVAL;
    return -1;
  }
  if (!calls().can_prune && std::string_view(to).ends_with(".pruned")) {
    errno = EACCES;
    return -1;
  }
  calls().add(flags == 0 ? "rename" : "exchange", path_at(from_folder, from), path_at(to_folder, to));
  return static_cast<int>(::syscall(SYS_renameat2, from_folder, from, to_folder, to, flags));
}

EXPORTED int rename(const char* from, const char* to) noexcept { return renameat2(AT_FDCWD, from, AT_FDCWD, to, 0); }

EXPORTED int unlinkat(int folder, const char* name, int flags) noexcept {
  calls().add("unlink", path_at(folder, name));
  return static_cast<int>(::syscall(SYS_unlinkat, folder, name, flags));
}

EXPORTED int unlink(const char* path) noexcept { return unlinkat(AT_FDCWD, path, 0); }

EXPORTED int rmdir(const char* path) noexcept { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }

EXPORTED int remove(const char* path) noexcept {
  return unlinkat(AT_FDCWD, path, fs::is_directory(fs::symlink_status(path)) ? AT_REMOVEDIR : 0);
}

}  // extern "C"

namespace caravan::testing::durability_test {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

/// Returns the warning.
std::string save(const fs::path& run, int64_t step, int64_t keep, int ranks = 1, bool in_background = false) {
  const Whole tensors{{"w", at::full({64}, static_cast<float>(step))}, {"v", at::ones({64})}};
  const CheckpointInfo info{.step = step, .position = 8 * step, .optimizer_steps = step, .model = "{}"};
  std::string warning;
  on_ranks({{"dp", ranks}}, [&](const Mesh& mesh) {
    BackgroundSave background(mesh.world());
    if (in_background) background.begin(run, info, invariant_pieces(tensors, mesh));
    const SavedCheckpoint saved = in_background
                                      ? background.finish()
                                      : save_checkpoint(run, info, invariant_pieces(tensors, mesh), mesh.world(), keep);
    EXPECT_EQ(saved.folder, run / checkpoint_name(step));
    if (in_background && mesh.rank() == 0) background.prune(run, keep);
    if (mesh.rank() == 0) warning = saved.warning;
  });
  return warning;
}

std::vector<std::string> entries(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

/// The calls that `work` makes below `root`.
std::vector<std::string> calls_of(const fs::path& root, const std::function<void()>& work) {
  calls().root = root;
  calls().made.clear();
  work();
  calls().root.clear();
  return calls().made;
}

/// Expects `wanted` among `made`, in this order.
void expect_order(const std::vector<std::string>& made, const std::vector<std::string>& wanted) {
  auto from = made.begin();
  for (const std::string& call : wanted) {
    const auto found = std::find(from, made.end(), call);
    ASSERT_NE(found, made.end()) << "'" << call << "' is missing, or comes too early, in "
                                 << ::testing::PrintToString(made);
    from = found + 1;
  }
}

TEST(Durability, EverythingIsOnDiskBeforeTheNameAppears) {
  const TemporaryFolder run;
  save(run.path(), 4, 0, 2);
  const auto made = calls_of(run.path(), [&] { save(run.path(), 5, 1, 2); });
  for (const char* shard : {"rank_00000.safetensors", "rank_00001.safetensors"}) {
    expect_order(made, {std::string("fsync .step_000005.tmp/") + shard, "fsync .step_000005.tmp/manifest.json"});
  }
  expect_order(made, {"fsync .step_000005.tmp/manifest.json", "fsync .step_000005.tmp",
                      "rename .step_000005.tmp to step_000005", "fsync .", "rename step_000004 to .step_000004.pruned",
                      "fsync .", "unlink .step_000004.pruned/manifest.json"});
  EXPECT_THAT(made, Each(Not(StartsWith("unlink step_"))));
  EXPECT_EQ(entries(run.path()), std::vector<std::string>{"step_000005"});
}

TEST(Durability, TheSameStepIsReplacedAtomicallyIfNamesCanBeExchanged) {
  const TemporaryFolder run;
  save(run.path(), 5, 0);
  const auto made = calls_of(run.path(), [&] { save(run.path(), 5, 0); });
  expect_order(made, {"fsync .step_000005.tmp", "exchange .step_000005.tmp to step_000005", "fsync .",
                      "unlink .step_000005.tmp/manifest.json"});
}

TEST(Durability, WithoutExchangeOfNamesTheOldOneIsRenamedFirst) {
  const TemporaryFolder run;
  save(run.path(), 5, 0);
  calls().can_exchange = false;
  const auto made = calls_of(run.path(), [&] { save(run.path(), 5, 0); });
  calls().can_exchange = true;
  expect_order(made, {"fsync .step_000005.tmp", "rename step_000005 to .step_000005.old", "fsync .",
                      "rename .step_000005.tmp to step_000005", "fsync .", "unlink .step_000005.old/manifest.json"});
  EXPECT_EQ(entries(run.path()), std::vector<std::string>{"step_000005"});
}

/// Ends a save of `step` before each of its calls in turn; after each, `check` looks at what is left.
void end_everywhere(int64_t step, bool can_exchange, bool in_background,
                    const std::function<void(const fs::path& run)>& check) {
  for (int64_t call = 0;; ++call) {
    ASSERT_LT(call, 100);
    const TemporaryFolder run;
    for (const int64_t before : {4, 5, 6}) save(run.path(), before, 0);
    const pid_t child = ::fork();
    if (child == 0) {
      calls().can_exchange = can_exchange;
      calls().made.clear();
      calls().die_before = call;
      calls().root = run.path();
      save(run.path(), step, 1, 1, in_background);
      ::_exit(1);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    SCOPED_TRACE("killed before call " + std::to_string(call));
    check(run.path());
    if (::testing::Test::HasFailure()) return;
    if (WEXITSTATUS(status) == 1) {
      EXPECT_GT(call, 5);
      return;
    }
  }
}

TEST(Durability, AKillAtAnyMomentLeavesWholeCheckpointsAndNoLeftovers) {
  for (const auto& [step, can_exchange, in_background] : {std::tuple{7, true, false}, std::tuple{6, true, false},
                                                          std::tuple{6, false, false}, std::tuple{7, true, true}}) {
    end_everywhere(step, can_exchange, in_background, [&, last = step](const fs::path& run) {
      restore_checkpoints(run);
      const auto left = list_checkpoints(run);
      ASSERT_FALSE(left.empty());
      EXPECT_GE(step_of(left.back()), 6);
      for (const fs::path& checkpoint : left) EXPECT_NO_THROW(verify_checkpoint(checkpoint));
      // A checkpoint is either complete or does not have a checkpoint's name.
      for (const std::string& name : entries(run)) {
        EXPECT_TRUE(name.starts_with(".step_") || fs::exists(run / name / "manifest.json")) << name;
      }
      save(run, last + 1, 1);
      EXPECT_EQ(entries(run), std::vector<std::string>{checkpoint_name(last + 1)});
    });
  }
}

TEST(Durability, AFailedPruneIsAWarningAndRepeatedByTheNextSave) {
  const TemporaryFolder run;
  EXPECT_EQ(save(run.path(), 5, 1, 2), "");
  calls().can_prune = false;
  const std::string warning = save(run.path(), 6, 1, 2);
  calls().can_prune = true;
  EXPECT_THAT(warning, StartsWith("older checkpoints were not removed: "));
  EXPECT_THAT(warning, HasSubstr("Permission denied"));
  EXPECT_EQ(entries(run.path()), (std::vector<std::string>{"step_000005", "step_000006"}));
  EXPECT_NO_THROW(verify_checkpoint(run / "step_000006"));
  EXPECT_EQ(save(run.path(), 7, 1, 2), "");
  EXPECT_EQ(entries(run.path()), std::vector<std::string>{"step_000007"});
}

TEST(Durability, CheckpointsWithoutAStepOfTrainingAreNeverPruned) {
  const TemporaryFolder run;
  for (const int64_t step : {0, 1, 2, 3}) save(run.path(), step, 1);
  EXPECT_EQ(entries(run.path()), (std::vector<std::string>{"step_000000", "step_000003"}));
}

TEST(Durability, LaterCheckpointsAreAbandonedNotDeleted) {
  const TemporaryFolder run;
  for (int round = 0; round < 2; ++round) {
    for (const int64_t step : {1, 2, 3}) save(run.path(), step, 0);
    abandon_later_checkpoints(run.path(), 1);
  }
  EXPECT_EQ(entries(run.path()),
            (std::vector<std::string>{"step_000001", "step_000002.abandoned", "step_000002.abandoned-2",
                                      "step_000003.abandoned", "step_000003.abandoned-2"}));
  EXPECT_EQ(list_checkpoints(run.path()), std::vector<fs::path>{run / "step_000001"});
  EXPECT_NO_THROW(verify_checkpoint(run / "step_000003.abandoned"));
}

TEST(Durability, TheNewestWholeCheckpointIsFound) {
  const TemporaryFolder run;
  for (const int64_t step : {1, 2, 3}) save(run.path(), step, 0);
  const auto damage = [&](const char* name) {
    const fs::path shard = run / name / "rank_00000.safetensors";
    std::string bytes = read_file(shard);
    bytes.back() = static_cast<char>(bytes.back() ^ 1);
    write_file(shard, bytes);
  };
  damage("step_000003");
  EXPECT_THAT(message_of<DataError>([&] { verify_checkpoint(run / "step_000003"); }),
              HasSubstr("rank_00000.safetensors: does not have the hash"));
  EXPECT_EQ(newest_whole_checkpoint(run.path(), 3), run / "step_000002");
  damage("step_000002");
  EXPECT_EQ(newest_whole_checkpoint(run.path(), 3), run / "step_000001");
  damage("step_000001");
  EXPECT_EQ(newest_whole_checkpoint(run.path(), 3), "");
}

}  // namespace
}  // namespace caravan::testing::durability_test
