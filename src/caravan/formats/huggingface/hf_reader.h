#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "caravan/nn/config.h"

namespace caravan {

/// Reads the members of a config.json or of an object in it. A member that is null counts as missing. All methods throw
/// DataError naming key and file for a value of another type.
class ConfigReader {
 public:
  using Json = nlohmann::ordered_json;

  /// Keeps references to `object` and `file`. `prefix` stands before the keys in messages.
  ConfigReader(const Json& object, std::string prefix, std::string_view file)
      : object_(object), prefix_(std::move(prefix)), file_(file) {}

  [[noreturn]] void refuse(std::string_view key, std::string_view fact, std::string_view action) const;

  bool is_empty() const;
  bool has(const char* key) const;
  /// nullptr for a member that is missing or null.
  const Json* find(const char* key) const;
  /// The members of the object `key`; nothing if it is missing.
  std::optional<ConfigReader> below(const char* key) const;
  /// Reads an object that was put together from members of this one. Keeps a reference to it.
  ConfigReader over(const Json& object, std::string prefix) const { return {object, std::move(prefix), file_}; }

  int64_t count(const char* key) const;  ///< also throws if it is missing
  int64_t count_or(const char* key, int64_t absent) const;
  /// For keys whose null means something else to transformers than leaving them out.
  int64_t count_or(const char* key, int64_t null, int64_t absent) const;
  /// A whole number from 0 on.
  int64_t number_or(const char* key, int64_t absent) const;
  double real_or(const char* key, double absent) const;
  std::vector<double> reals_or(const char* key, std::vector<double> absent) const;
  /// A list of numbers of layers: a bool for each of `layers`.
  std::vector<bool> listed_or(const char* key, int64_t layers, const std::vector<int64_t>& absent) const;
  /// A list of 0 or 1 for each of `layers`: the layers that have `is_member`.
  LayerSet flags_or(const char* key, int64_t layers, int is_member, const std::vector<bool>& absent) const;
  /// A list of a word for each of `layers`: whether it is `yes`; the only other one is `no`.
  std::vector<bool> types_or(const char* key, int64_t layers, std::string_view yes, std::string_view no,
                             std::vector<bool> absent) const;
  bool flag_or(const char* key, bool absent) const;
  std::string text_or(const char* key, std::string_view absent) const;
  /// One id; nothing for null. A missing member has the id `absent`, unless the vocabulary ends before it.
  std::optional<int64_t> token_or(const char* key, std::optional<int64_t> absent) const;
  /// One id or a list of them.
  std::vector<int64_t> tokens_or(const char* key, std::optional<int64_t> absent) const;

  /// Throw for any other value, which no model here supports.
  void require(const char* key, bool is, bool absent) const;
  void require(const char* key, std::initializer_list<std::string_view> known, std::string_view absent) const;
  void require(const char* key, double is, double absent, std::string_view reason) const;

 private:
  [[noreturn]] void refuse_value(const char* key, std::string_view kind) const;
  int64_t token(const char* key, const Json& value) const;

  const Json& object_;
  std::string prefix_;
  std::string_view file_;
};

/// Parses the text of `file`, a JSON object. Throws DataError if it is not one.
nlohmann::ordered_json parse_config_object(std::string_view json, std::string_view file);

/// Calls config.validate() for the config of `file`, and throws its error as DataError.
void validate_config(const ModelConfig& config, std::string_view file);

}  // namespace caravan
