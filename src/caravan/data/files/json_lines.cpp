#include "caravan/data/files/json_lines.h"

#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "caravan/base/error.h"
#include "caravan/base/json_reader.h"
#include "caravan/base/system/file.h"
#include "caravan/base/text.h"

namespace caravan {
namespace {

std::string place(const std::filesystem::path& file, int64_t number) {
  return fmt::format("{}:{}", file.string(), number);
}

[[noreturn]] void refuse(const std::filesystem::path& file, int64_t number, std::string fact, std::string action) {
  throw DataError({.op = "data", .subject = place(file, number), .fact = std::move(fact), .action = std::move(action)});
}

constexpr const char* kAreChats =
    "chats are read with data.format = \"chat\" (evaluate: --set data.format=chat); or name a field that has text";

/// The kind of `value`, for a sentence.
std::string kind_of(const nlohmann::json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return "an array";
  if (value.is_null()) return "null";
  if (value.is_boolean()) return "a boolean";
  return value.is_number() ? "a number" : "a string";
}

/// The innermost object on the way to a field, and the field; null if it is missing there.
template <class Json>
struct FoundField {
  const Json* object;
  const Json* value;
};

template <class Json>
FoundField<Json> find_member(const Json& object, const std::string& field) {
  const Json* at = &object;
  std::string_view rest = field;
  while (true) {
    const size_t dot = at->contains(std::string(rest)) ? std::string_view::npos : rest.find('.');
    const auto found = at->is_object() ? at->find(std::string(rest.substr(0, dot))) : at->end();
    if (found == at->end()) return {at, nullptr};
    if (dot == std::string_view::npos) return {at, &*found};
    at = &*found;
    rest.remove_prefix(dot + 1);
  }
}

}  // namespace

nlohmann::json parse_json_line(std::string_view line, const std::filesystem::path& file, int64_t number) {
  check_json_depth(line, place(file, number), "data");
  nlohmann::json object;
  JsonFault fault;
  if (!parse_json(line, object, fault)) {
    refuse(file, number,
           fault.is_syntax ? fmt::format("is not JSON from byte {} of the line on", fault.byte) : fault.fact,
           "write one JSON object a line, in UTF-8");
  }
  if (!object.is_object()) {
    refuse(file, number, fmt::format("is {}, not an object", kind_of(object)), "write one JSON object a line");
  }
  return object;
}

const nlohmann::json& json_field(const nlohmann::json& object, const std::string& field,
                                 const std::filesystem::path& file, int64_t number) {
  const auto [at, value] = find_member(object, field);
  if (value != nullptr) return *value;
  std::vector<std::string> names;
  if (at->is_object()) {
    for (const auto& item : at->items()) names.push_back(item.key());
  }
  refuse(file, number,
         names.empty() ? fmt::format("has no field {}", field)
                       : fmt::format("has no field {}, but {}", field, join(names)),
         names.empty()
             ? "correct the line, or name a field that all lines have"
             : fmt::format("correct the line, or, if all lines are so, name the field {}", nearest(field, names)));
}

const nlohmann::ordered_json* find_field(const nlohmann::ordered_json& object, const std::string& field) {
  return find_member(object, field).value;
}

const std::string& text_field(const nlohmann::json& object, const std::string& field, const std::filesystem::path& file,
                              int64_t number) {
  const auto messages = object.find("messages");
  const bool is_chat = messages != object.end() && messages->is_array();
  if (is_chat && find_member(object, field).value == nullptr) {
    refuse(file, number, fmt::format("has no field {}, but the messages of a chat", field), kAreChats);
  }
  const nlohmann::json& value = json_field(object, field, file, number);
  if (!value.is_string()) {
    refuse(file, number, fmt::format("its field {} is {}, not a string", field, kind_of(value)),
           value.is_array() ? kAreChats : "name a field that has text");
  }
  return value.get_ref<const std::string&>();
}

void for_each_json_line(const std::filesystem::path& file,
                        const std::function<void(int64_t number, const nlohmann::json& object)>& take) {
  const MappedFile mapped(file, "data");
  LineSplitter lines([&](int64_t number, std::string_view line) { take(number, parse_json_line(line, file, number)); });
  lines.put(mapped.text());
  lines.finish();
}

void LineSplitter::put(std::string_view piece) {
  while (true) {
    const size_t end = piece.find('\n');
    if (end == std::string_view::npos) break;
    if (begun_.empty()) {
      line(piece.substr(0, end));
    } else {
      begun_ += piece.substr(0, end);
      line(begun_);
      begun_.clear();
    }
    piece.remove_prefix(end + 1);
  }
  begun_ += piece;
}

void LineSplitter::finish() {
  if (!begun_.empty()) line(begun_);
  begun_.clear();
}

void LineSplitter::line(std::string_view text) {
  ++number_;
  if (text.find_first_not_of(" \t\r") != std::string_view::npos) take_(number_, text);
}

}  // namespace caravan
