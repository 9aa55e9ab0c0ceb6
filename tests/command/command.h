#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/launch/child.h"

namespace caravan {

/// A test that runs the built command as a user does, with its own folder for runs, data and cache, and a model that
/// takes milliseconds per step. A command that chooses an entry that the build lacks (--set) skips the case.
class CommandTest : public ::testing::Test {
 protected:
  using Words = std::vector<std::string>;

  struct Result {
    int code = -1;  ///< 1000 + n: ended by signal n
    std::string out;
    std::string err;
  };

  CommandTest();
  ~CommandTest() override;

  /// The folder of this test, in which path() and file() are.
  const std::filesystem::path& folder() const { return folder_; }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  /// Writes a file below folder() and returns its path.
  std::string file(const std::string& name, const std::string& text) const;

  /// Runs `command` to its end; fails if it leaves processes behind. `input`: a file for stdin.
  Result run(const Words& command, const std::string& input = "") const;
  Result caravan(const Words& arguments, const std::string& input = "") const;
  /// Starts it without waiting.
  std::unique_ptr<Child> start(const Words& arguments) const;

  /// The words of `caravan train` for the tiny model in run folder path(name), followed by `more`.
  Words tiny(const std::string& name, int ranks, const Words& more = {}) const;
  Result train(const std::string& name, int ranks, const Words& more = {}) const {
    return caravan(tiny(name, ranks, more));
  }

  /// The ranks of one job, each a separate process with its own arguments, as started by hand.
  std::vector<Result> by_hand(const std::vector<Words>& ranks) const;
  /// Starts one of them; its rank 0 serves on `port`.
  std::unique_ptr<Child> start_rank(const Words& arguments, size_t rank, size_t num_ranks, int port) const;

  /// The lines of a run's train.log.
  std::vector<nlohmann::json> log(const std::string& name) const;
  /// The bytes of the tensors of all shards in a folder.
  static std::map<std::string, std::string> tensors(const std::filesystem::path& folder);
  static std::string text_of(const std::filesystem::path& path);
  /// The process of this rank of the job.
  static pid_t rank_process(const Child& child, int rank);
  static int free_port();
  /// A command that runs `script` by sh in its own mount namespace, where it may mount.
  static Words with_own_mounts(const std::string& script);

  static std::string program();
  Child::Options options() const;

 private:
  std::filesystem::path folder_;
};

/// {"--set", a, "--set", b, ..}.
std::vector<std::string> set(const std::vector<std::string>& overrides);

}  // namespace caravan
