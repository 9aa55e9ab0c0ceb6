#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

namespace caravan {

// Files with a JSON object in each line (JSONL). Errors name file and line.

/// The object in line `number` (from 1) of `file`. Throws DataError if the line is not a JSON object.
nlohmann::json parse_json_line(std::string_view line, const std::filesystem::path& file, int64_t number);

/// The value of `field` of the object in that line. Throws DataError if it is missing, naming the existing fields.
const nlohmann::json& json_field(const nlohmann::json& object, const std::string& field,
                                 const std::filesystem::path& file, int64_t number);

/// The same of an object that keeps the order of its members; null if it is missing.
const nlohmann::ordered_json* find_field(const nlohmann::ordered_json& object, const std::string& field);

/// The text in `field` of the object in that line; "meta.text" is a member of a member. Throws DataError if it is
/// missing or not a string, naming the existing fields.
const std::string& text_field(const nlohmann::json& object, const std::string& field, const std::filesystem::path& file,
                              int64_t number);

/// Calls take(number, object) for every line of `file` that is not blank. Throws as parse_json_line does.
void for_each_json_line(const std::filesystem::path& file,
                        const std::function<void(int64_t number, const nlohmann::json& object)>& take);

/// Calls `take` for the lines of a text that arrives in pieces, without line breaks, counted from 1. Blank lines are
/// left out.
class LineSplitter {
 public:
  explicit LineSplitter(std::function<void(int64_t number, std::string_view line)> take) : take_(std::move(take)) {}
  void put(std::string_view piece);
  /// The last line need not end with a line break.
  void finish();

 private:
  void line(std::string_view text);

  std::function<void(int64_t, std::string_view)> take_;
  std::string begun_;
  int64_t number_ = 0;
};

}  // namespace caravan
