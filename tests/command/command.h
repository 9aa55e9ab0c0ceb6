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

/// Tests that run the built command as a user does: the command's own folder of runs, data and cache, and a model that
/// takes milliseconds a step.
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

  /// An empty folder of this test; tests' paths stand below it.
  const std::filesystem::path& folder() const { return folder_; }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  /// Writes a file below folder() and returns its path.
  std::string file(const std::string& name, const std::string& text) const;

  /// Runs `command` to its end, and fails unless all it started ended with it. `input`: a file for stdin.
  Result run(const Words& command, const std::string& input = "") const;
  Result caravan(const Words& arguments, const std::string& input = "") const;
  /// The same without waiting.
  std::unique_ptr<Child> start(const Words& arguments) const;

  /// The words of `caravan train` for the tiny model in run folder `name` below folder(), with `more` behind.
  Words tiny(const std::string& name, int ranks, const Words& more = {}) const;
  Result train(const std::string& name, int ranks, const Words& more = {}) const {
    return caravan(tiny(name, ranks, more));
  }

  /// The lines of a run's train.log.
  std::vector<nlohmann::json> log(const std::string& name) const;
  /// The tensors of all shards of a folder, as bytes.
  static std::map<std::string, std::string> tensors(const std::filesystem::path& folder);
  static std::string text_of(const std::filesystem::path& path);
  /// The one process of the job that is this rank.
  static pid_t rank_process(const Child& child, int rank);
  /// `script` for sh in a mount namespace of its own, with the rights to mount.
  static Words with_own_mounts(const std::string& script);

  static std::string program();
  Child::Options options() const;

 private:
  std::filesystem::path folder_;
};

/// Each pair of words as --set a --set b.
std::vector<std::string> set(const std::vector<std::string>& overrides);

}  // namespace caravan
