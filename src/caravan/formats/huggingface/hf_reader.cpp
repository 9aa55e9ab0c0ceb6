#include "caravan/formats/huggingface/hf_reader.h"

#include <limits>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "caravan/base/error.h"
#include "caravan/base/json_reader.h"

namespace caravan {

void ConfigReader::refuse(std::string_view key, std::string_view fact, std::string_view action) const {
  throw DataError(
      {"import", fmt::format("{}{}", prefix_, key), std::string(fact), std::string(file_), std::string(action)});
}

void ConfigReader::refuse_value(const char* key, std::string_view kind) const {
  refuse(key, fmt::format("is {}, not {}", object_[key].dump(-1, ' ', true, Json::error_handler_t::replace), kind),
         "correct the file");
}

bool ConfigReader::is_empty() const { return object_.empty(); }

bool ConfigReader::has(const char* key) const { return object_.contains(key); }

const ConfigReader::Json* ConfigReader::find(const char* key) const {
  const auto member = object_.find(key);
  return member == object_.end() || member->is_null() ? nullptr : &*member;
}

std::optional<ConfigReader> ConfigReader::below(const char* key) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_object()) refuse(key, "is not an object", "correct the file");
  return ConfigReader(*value, fmt::format("{}{}.", prefix_, key), file_);
}

int64_t ConfigReader::count(const char* key) const {
  if (find(key) == nullptr) refuse(key, "is missing", "take the config.json that belongs to the weights");
  return count_or(key, 0);
}

int64_t ConfigReader::count_or(const char* key, int64_t absent) const {
  const Json* value = find(key);
  if (value == nullptr) return absent;
  if (!value->is_number_integer() || *value < 1 || *value > int64_t{1} << 40) refuse_value(key, "a count above 0");
  return value->get<int64_t>();
}

int64_t ConfigReader::count_or(const char* key, int64_t null, int64_t absent) const {
  return count_or(key, object_.contains(key) ? null : absent);
}

int64_t ConfigReader::number_or(const char* key, int64_t absent) const {
  const Json* value = find(key);
  if (value == nullptr) return absent;
  if (!value->is_number_integer() || *value < 0 || *value > int64_t{1} << 40) refuse_value(key, "a whole number");
  return value->get<int64_t>();
}

std::vector<double> ConfigReader::reals_or(const char* key, std::vector<double> absent) const {
  const Json* value = find(key);
  if (value == nullptr) return absent;
  std::vector<double> numbers;
  for (const Json& one : value->is_array() ? *value : Json::array({nullptr})) {
    if (!one.is_number()) refuse_value(key, "a list of numbers");
    numbers.push_back(one.get<double>());
  }
  return numbers;
}

std::vector<bool> ConfigReader::listed_or(const char* key, int64_t layers, const std::vector<int64_t>& absent) const {
  std::vector<bool> is_listed(static_cast<size_t>(layers), false);
  const Json* value = find(key);
  for (const Json& one : value == nullptr ? Json(absent) : value->is_array() ? *value : Json::array({-1})) {
    if (!one.is_number_integer() || one < 0) refuse_value(key, "a list of numbers of layers");
    if (one < layers) is_listed[one.get<size_t>()] = true;
  }
  return is_listed;
}

LayerSet ConfigReader::flags_or(const char* key, int64_t layers, int is_member, const std::vector<bool>& absent) const {
  const Json* value = find(key);
  if (value == nullptr) return LayerSet::of(absent);
  if (!value->is_array() || value->size() != static_cast<size_t>(layers)) {
    refuse(key, fmt::format("is not a list of {} numbers, one for each layer", layers), "correct the file");
  }
  std::vector<bool> is_one;
  for (const Json& one : *value) {
    if (one != 0 && one != 1) refuse_value(key, "a list of 0 and 1");
    is_one.push_back(one == is_member);
  }
  return LayerSet::of(is_one);
}

std::vector<bool> ConfigReader::types_or(const char* key, int64_t layers, std::string_view yes, std::string_view no,
                                         std::vector<bool> absent) const {
  const Json* value = find(key);
  if (value == nullptr) return absent;
  if (!value->is_array() || value->size() != static_cast<size_t>(layers)) {
    refuse(key, fmt::format("is not a list of {} types, one for each layer", layers), "correct the file");
  }
  std::vector<bool> is_yes;
  for (const Json& one : *value) {
    if (one != yes && one != no) {
      refuse(key, fmt::format("holds {}, which is neither {} nor {}", one.dump(), yes, no),
             "import a model whose layers are all of these types");
    }
    is_yes.push_back(one == yes);
  }
  return is_yes;
}

double ConfigReader::real_or(const char* key, double absent) const {
  const Json* value = find(key);
  if (value == nullptr) return absent;
  if (!value->is_number()) refuse_value(key, "a number");
  return value->get<double>();
}

bool ConfigReader::flag_or(const char* key, bool absent) const {
  const Json* value = find(key);
  if (value == nullptr) return absent;
  if (!value->is_boolean()) refuse_value(key, "true or false");
  return value->get<bool>();
}

std::string ConfigReader::text_or(const char* key, std::string_view absent) const {
  const Json* value = find(key);
  if (value == nullptr) return std::string(absent);
  if (!value->is_string()) refuse_value(key, "a string");
  return value->get<std::string>();
}

std::optional<int64_t> ConfigReader::token_or(const char* key, std::optional<int64_t> absent) const {
  if (!object_.contains(key)) return absent && *absent < count("vocab_size") ? absent : std::nullopt;
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  return token(key, *value);
}

std::vector<int64_t> ConfigReader::tokens_or(const char* key, std::optional<int64_t> absent) const {
  const Json* value = find(key);
  std::vector<int64_t> ids;
  if (value == nullptr || !value->is_array()) {
    if (const auto id = token_or(key, absent)) ids.push_back(*id);
    return ids;
  }
  for (const Json& one : *value) ids.push_back(token(key, one));
  return ids;
}

void ConfigReader::require(const char* key, bool is, bool absent) const {
  if (flag_or(key, absent) == is) return;
  refuse(key, fmt::format("is {}, which is not supported", !is), "import a model without it");
}

void ConfigReader::require(const char* key, std::initializer_list<std::string_view> known,
                           std::string_view absent) const {
  const std::string text = text_or(key, absent);
  for (const std::string_view one : known) {
    if (text == one) return;
  }
  refuse(key, fmt::format("is '{}', which is not supported", text),
         fmt::format("import a model whose {} is {}", key, fmt::join(known, " or ")));
}

void ConfigReader::require(const char* key, double is, double absent, std::string_view reason) const {
  const double value = real_or(key, absent);
  if (value == is) return;
  refuse(key, fmt::format("is {}, not {}: {}, which no model here does", value, is, reason),
         "import a model without it");
}

int64_t ConfigReader::token(const char* key, const Json& value) const {
  // Some files say -1 for a token that a model does not have.
  if (!value.is_number_integer() || value < -1 || value > std::numeric_limits<int32_t>::max()) {
    refuse_value(key, "a token id");
  }
  return value.get<int64_t>();
}

nlohmann::ordered_json parse_config_object(std::string_view json, std::string_view file) {
  check_json_depth(json, file, "import");
  nlohmann::ordered_json parsed = nlohmann::ordered_json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (parsed.is_object()) return parsed;
  throw DataError({"import", std::string(file), parsed.is_discarded() ? "is not JSON" : "is not a JSON object", "",
                   "give the folder of a model, with its config.json"});
}

void validate_config(const ModelConfig& config, std::string_view file) {
  try {
    config.validate();
  } catch (const UsageError& error) {
    throw DataError({"import", error.text().subject, error.text().fact, std::string(file), "correct the file"});
  }
}

}  // namespace caravan
