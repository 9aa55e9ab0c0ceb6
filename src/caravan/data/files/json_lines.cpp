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

/// The kind of `value`, for a sentence.
std::string kind_of(const nlohmann::json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return "an array";
  if (value.is_null()) return "null";
  if (value.is_boolean()) return "a boolean";
  return value.is_number() ? "a number" : "a string";
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
  const nlohmann::json* at = &object;
  std::string_view rest = field;
  while (true) {
    const size_t dot = at->contains(std::string(rest)) ? std::string_view::npos : rest.find('.');
    const std::string name(rest.substr(0, dot));
    const auto found = at->is_object() ? at->find(name) : at->end();
    if (found == at->end()) {
      std::vector<std::string> names;
      if (at->is_object()) {
        for (const auto& item : at->items()) names.push_back(item.key());
      }
      refuse(file, number,
             names.empty() ? fmt::format("has no field {}", field)
                           : fmt::format("has no field {}, but {}", field, join(names)),
             names.empty() ? "name the field that has the text"
                           : fmt::format("name the field that has the text, such as {}", nearest(field, names)));
    }
    at = &*found;
    if (dot == std::string_view::npos) break;
    rest.remove_prefix(dot + 1);
  }
  return *at;
}

const std::string& text_field(const nlohmann::json& object, const std::string& field, const std::filesystem::path& file,
                              int64_t number) {
  const nlohmann::json& value = json_field(object, field, file, number);
  if (!value.is_string()) {
    refuse(file, number, fmt::format("its field {} is {}, not a string", field, kind_of(value)),
           "name a field that has text");
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
