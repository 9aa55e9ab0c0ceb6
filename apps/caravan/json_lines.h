#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "caravan/base/error.h"
#include "caravan/base/file.h"

namespace caravan::app {

/// The lines of a JSONL file, each an object.
class JsonLines {
 public:
  /// Throws DataError for a file that is missing. `op` is the first part of every error message.
  JsonLines(std::filesystem::path file, std::string op);

  /// Calls `take(number, object)` for each line that is not blank; numbers start at 1. `refuse` is given the DataError,
  /// naming file and line, of a line that is no object, and the one that `take` throws; it may throw it, or let the
  /// next line follow.
  void for_each(const std::function<void(int64_t line, const nlohmann::json& object)>& take,
                const std::function<void(const DataError& error)>& refuse) const;
  /// The same, throwing the first error.
  void for_each(const std::function<void(int64_t line, const nlohmann::json& object)>& take) const;

  /// "prompts.jsonl:3", for errors.
  std::string where(int64_t line) const;

 private:
  std::filesystem::path path_;
  std::string op_;
  MappedFile file_;
};

}  // namespace caravan::app
