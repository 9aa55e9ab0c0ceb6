#include "caravan/data/files/record.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "caravan/base/error.h"
#include "caravan/data/files/json_lines.h"

namespace caravan {
namespace {

[[noreturn]] void refuse_record(const std::filesystem::path& file, int64_t number, std::string fact,
                                std::string action) {
  throw DataError({"data", fmt::format("{}:{}", file.string(), number), std::move(fact), "", std::move(action)});
}

}  // namespace

Record Record::read(const nlohmann::json& object, const RecordFields& fields, const std::filesystem::path& file,
                    int64_t number) {
  const auto text = [&](const std::string& field) -> std::string {
    if (field.empty()) return "";
    if (!fields.third.empty() && object.contains(field) && object.at(field).is_array()) {
      refuse_record(file, number, fmt::format("its field {} has messages, not a text", field),
                    "set data.format = \"chat\"");
    }
    const std::string& value = text_field(object, field, file, number);
    if (value.empty()) {
      refuse_record(file, number, fmt::format("its field {} is an empty text", field),
                    "give it some text, or leave the line out: data.skip_bad_lines = true");
    }
    return value;
  };
  Record record{.line = number, .first = text(fields.first), .second = text(fields.second)};
  record.third = text(fields.third);
  if (fields.label.empty()) return record;
  const nlohmann::json& label = json_field(object, fields.label, file, number);
  if (label.is_number_integer()) {
    record.label = label.dump();
  } else if (label.is_string() && !label.get_ref<const std::string&>().empty()) {
    record.label = label.get<std::string>();
  } else {
    refuse_record(file, number, fmt::format("its field {} is {}, which is no label", fields.label, label.dump()),
                  "give the name or the number of a class");
  }
  return record;
}

std::string Record::to_json() const {
  nlohmann::json parts = nlohmann::json::array({line, first, second, label});
  if (!third.empty()) parts.push_back(third);
  return parts.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

Record Record::from_json(std::string_view json) {
  const auto parts = nlohmann::json::parse(json);
  Record record{.line = parts.at(0), .first = parts.at(1), .second = parts.at(2), .label = parts.at(3)};
  if (parts.size() > 4) record.third = parts.at(4);
  return record;
}

}  // namespace caravan
