#include "caravan/base/json_reader.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "caravan/base/error.h"
#include "caravan/base/text.h"

namespace caravan {
namespace {

const nlohmann::json& null_value() {
  static const nlohmann::json null;
  return null;
}

/// A value for a message: shortened, on one line.
std::string shown(const nlohmann::json& value) {
  if (value.is_structured()) return fmt::format("{} of {}", value.type_name(), value.size());
  std::string text = value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  constexpr size_t kLongest = 60;
  if (text.size() > kLongest) text = text.substr(0, kLongest) + "...";
  return text;
}

std::vector<std::string> strings(std::initializer_list<std::string_view> words) { return {words.begin(), words.end()}; }

}  // namespace

void check_json_depth(std::string_view text, std::string_view file, std::string_view op) {
  constexpr int kDeepest = 100;
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = false;
      }
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth <= kDeepest) continue;
      throw DataError({.op = std::string(op),
                       .subject = std::string(file),
                       .fact = fmt::format("nests arrays and objects more than {} deep, at byte {}", kDeepest, i),
                       .action = "get the file again: it is damaged"});
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
}

bool parse_json(std::string_view text, nlohmann::json& value, JsonFault& fault) {
  try {
    value = nlohmann::json::parse(text);
    return true;
  } catch (const nlohmann::json::parse_error& error) {
    fault = {.fact = fmt::format("is not JSON: {}", error.what()), .is_syntax = true, .byte = error.byte};
  } catch (const nlohmann::json::exception& error) {
    // "[json.exception.out_of_range.406] number overflow parsing '1e999'"
    std::string_view number = error.what();
    number.remove_prefix(std::min(number.find('\''), number.size()));
    fault = {.fact = fmt::format("has a number that is too large: {}", number), .is_syntax = false};
  }
  return false;
}

void JsonReader::refuse(std::string_view fact, std::string_view action) const {
  throw DataError({.op = std::string(op_),
                   .subject = std::string(file_),
                   .fact = fmt::format("{} {}", path_.empty() ? "the file" : path_, fact),
                   .action = std::string(action)});
}

bool JsonReader::is_null() const noexcept { return value_->is_null(); }

bool JsonReader::has(std::string_view key) const { return value_->is_object() && value_->contains(key); }

JsonReader JsonReader::operator[](std::string_view key) const {
  if (!value_->is_object()) refuse(fmt::format("is {}, not an object", shown(*value_)), "give an object");
  const auto found = value_->find(key);
  std::string path = path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key);
  return {found == value_->end() ? null_value() : *found, std::move(path), file_, op_};
}

JsonReader JsonReader::element(size_t index) const {
  return {(*value_)[index], fmt::format("{}[{}]", path_, index), file_, op_};
}

size_t JsonReader::size() const {
  if (!value_->is_structured()) refuse(fmt::format("is {}, not a list or an object", shown(*value_)), "correct it");
  return value_->size();
}

const std::string& JsonReader::string() const {
  if (!value_->is_string()) refuse(fmt::format("is {}, not a string", shown(*value_)), "give a string");
  return value_->get_ref<const std::string&>();
}

bool JsonReader::boolean() const {
  if (!value_->is_boolean()) refuse(fmt::format("is {}, not true or false", shown(*value_)), "give true or false");
  return value_->get<bool>();
}

int64_t JsonReader::integer(int64_t least, int64_t most) const {
  const bool fits = value_->is_number_unsigned()  ? value_->get<uint64_t>() <= static_cast<uint64_t>(most)
                    : value_->is_number_integer() ? value_->get<int64_t>() <= most
                                                  : false;
  if (!fits || value_->get<int64_t>() < least) {
    refuse(fmt::format("is {}, not a whole number from {} to {}", shown(*value_), least, most), "correct it");
  }
  return value_->get<int64_t>();
}

void JsonReader::allow_only(std::initializer_list<std::string_view> keys) const {
  for (const auto& [key, value] : value_->items()) {
    if (std::find(keys.begin(), keys.end(), key) != keys.end()) continue;
    const std::vector<std::string> known = strings(keys);
    refuse(fmt::format("has the unknown key \"{}\"", key),
           fmt::format("known here: {}; did you mean {}?", join(known), nearest(key, known)));
  }
}

size_t JsonReader::choice(std::initializer_list<std::string_view> choices) const {
  const auto* found = std::find(choices.begin(), choices.end(), string());
  if (found == choices.end()) {
    refuse(fmt::format("is {}", shown(*value_)), fmt::format("supported: {}", join(strings(choices))));
  }
  return static_cast<size_t>(found - choices.begin());
}

}  // namespace caravan
