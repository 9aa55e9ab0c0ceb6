#include "apps/caravan/json_lines.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "caravan/base/json_reader.h"

namespace caravan::app {

JsonLines::JsonLines(std::filesystem::path file, std::string op)
    : path_(std::move(file)), op_(std::move(op)), file_(path_, op_) {}

std::string JsonLines::where(int64_t line) const { return fmt::format("{}:{}", path_.string(), line); }

void JsonLines::for_each(const std::function<void(int64_t line, const nlohmann::json& object)>& take,
                         const std::function<void(const DataError& error)>& refuse) const {
  std::string_view rest = file_.text();
  for (int64_t number = 1; !rest.empty(); ++number) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    try {
      check_json_depth(line, where(number), op_);
      const nlohmann::json object = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
      if (!object.is_object()) {
        throw DataError({op_, where(number), "the line is not a JSON object", "", "give one object per line"});
      }
      take(number, object);
    } catch (const DataError& error) {
      refuse(error);
    }
  }
}

void JsonLines::for_each(const std::function<void(int64_t line, const nlohmann::json& object)>& take) const {
  for_each(take, [](const DataError& error) { throw DataError(error); });
}

}  // namespace caravan::app
