#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

namespace caravan {

/// The fields of the JSON lines, or columns of the tables, of a task of records; "": records have no such part.
struct RecordFields {
  std::string first = "text";
  std::string second{};  ///< the other text of a pair, or the target
  std::string label{};
  std::string third{};  ///< of preferences: the rejected answer; `first` is the prompt, `second` the chosen one
};

/// What a line of JSON lines, or a row of a table, has for a task of records (data.task = "classify", "pairs",
/// "preference").
struct Record {
  int64_t line = 0;  ///< of its file, from 1
  std::string first;
  std::string second{};
  std::string label{};  ///< a whole number as its digits
  std::string third{};

  /// The record in line `number` of `file`. Throws DataError naming both if a field is missing, a text is not a string
  /// or empty, or the label is neither a string nor a whole number.
  static Record read(const nlohmann::json& object, const RecordFields& fields, const std::filesystem::path& file,
                     int64_t number);

  /// Converts to and from JSON text, the document of a file of records: see TextFormat.
  std::string to_json() const;
  static Record from_json(std::string_view json);
};

}  // namespace caravan
