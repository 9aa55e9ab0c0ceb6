#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

namespace caravan {

/// Throws DataError naming `file` if arrays and objects of this JSON text are nested more than 100 deep: code that
/// walks such a value by recursion would overflow its stack. Call it before parsing. Does not check anything else.
void check_json_depth(std::string_view text, std::string_view file, std::string_view op);

/// Why a JSON text cannot be parsed.
struct JsonFault {
  std::string fact;       ///< "has a number that is too large: 1e999"
  bool is_syntax = true;  ///< false: the text is valid JSON, but has a number that no double holds
  size_t byte = 0;        ///< of a syntax error, from 1
};

/// Parses `text` into `value`. Returns false, and the reason in `fault`, if it cannot be parsed. Every user input is
/// parsed here, because the parser throws more than one kind of exception.
bool parse_json(std::string_view text, nlohmann::json& value, JsonFault& fault);

/// A value of a JSON file together with its path in the file, for error messages. Keeps references: the document must
/// outlive it.
class JsonReader {
 public:
  /// `op` is the first part of every error message: the purpose of reading the file.
  JsonReader(const nlohmann::json& value, std::string path, std::string_view file, std::string_view op)
      : value_(&value), path_(std::move(path)), file_(file), op_(op) {}

  /// Throws DataError "<file>: <path> <fact>" with the action.
  [[noreturn]] void refuse(std::string_view fact, std::string_view action) const;

  const nlohmann::json& value() const noexcept { return *value_; }
  const std::string& path() const noexcept { return path_; }
  bool is_null() const noexcept;
  bool has(std::string_view key) const;

  /// The member `key` of an object; null if it is missing. Throws DataError if this is not an object.
  JsonReader operator[](std::string_view key) const;
  JsonReader element(size_t index) const;
  size_t size() const;  ///< of an array or object; throws DataError for anything else

  /// Throw DataError for a value of another type.
  const std::string& string() const;
  bool boolean() const;
  bool boolean_or(bool absent) const { return is_null() ? absent : boolean(); }
  int64_t integer(int64_t least, int64_t most) const;

  /// Throws DataError for a key of this object that is not in `keys`: ignoring it could change the ids.
  void allow_only(std::initializer_list<std::string_view> keys) const;
  /// The index of the string in `choices`. Throws DataError listing them if it is not one of them.
  size_t choice(std::initializer_list<std::string_view> choices) const;

 private:
  const nlohmann::json* value_;
  std::string path_;
  std::string_view file_;
  std::string_view op_;
};

}  // namespace caravan
