#include "caravan/report/run_log.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "caravan/base/error.h"
#include "caravan/base/json_reader.h"
#include "caravan/base/system/file.h"
#include "caravan/base/text.h"
#include "caravan/base/time.h"

namespace caravan {
namespace {

namespace fs = std::filesystem;

/// Adds the numbers of `value` under `name`, those of lists under name.0, name.1. See check_json_depth.
void take_numbers(std::map<std::string, double>& numbers, const std::string& name, const nlohmann::json& value) {
  if (value.is_number()) {
    numbers[name] = value.get<double>();
  } else if (value.is_array() || value.is_object()) {
    for (const auto& [key, part] : value.items()) take_numbers(numbers, name + "." + key, part);
  }
}

MetricsLine line_of(const nlohmann::json& json) {
  if (!json.at("step").is_number_integer()) throw DataError({"train.log", "step", "is not an integer", "", ""});
  MetricsLine line{.step = json.at("step").get<int64_t>()};
  if (json.contains("time")) line.seconds = parse_utc(json["time"].get<std::string>());
  line.host = json.value("host", "");
  for (const char* trouble : {"spike", "slowdown"}) {
    if (json.contains(trouble) && json[trouble].is_string()) line.troubles.push_back(json[trouble].get<std::string>());
  }
  for (const auto& [key, value] : json.items()) take_numbers(line.numbers, key, value);
  return line;
}

}  // namespace

MetricsLine parse_metrics_line(std::string_view json) { return line_of(nlohmann::json::parse(json)); }

RunLog RunLog::read(const fs::path& run) {
  const fs::path path = run / "train.log";
  std::error_code error;
  if (!fs::exists(path, error)) {
    throw DataError({"train.log", run.string(), "has no train.log", "",
                     "name the folder of a run that has trained, such as runs/default-1"});
  }
  RunLog log;
  log.run_ = fs::absolute(run).lexically_normal();
  if (fs::is_empty(path, error)) return log;
  const MappedFile file(path, "train.log");
  const std::string_view text = file.text();
  size_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    if (end == std::string_view::npos) break;  // it is being written
    ++number;
    try {
      const std::string_view line = text.substr(begin, end - begin);
      check_json_depth(line, path.string(), "train.log");
      const auto json = nlohmann::json::parse(line);
      if (!json.contains("changed") && !json.contains("plan")) log.lines_.push_back(line_of(json));
    } catch (const std::exception& wrong) {
      throw DataError({"train.log", fmt::format("{}:{}", path.string(), number),
                       std::string("is not a line of a log: ") + wrong.what(), "", "remove the damaged line"});
    }
    begin = end + 1;
  }
  return log;
}

std::string RunLog::name() const { return (run_.has_filename() ? run_ : run_.parent_path()).filename().string(); }

std::vector<std::string> RunLog::quantities() const {
  std::set<std::string> names;
  for (const MetricsLine& line : lines_) {
    for (const auto& [name, value] : line.numbers) names.insert(name);
  }
  return {names.begin(), names.end()};
}

bool RunLog::has(const std::string& quantity) const {
  return std::ranges::any_of(lines_, [&](const MetricsLine& line) { return line.numbers.contains(quantity); });
}

Series RunLog::series(const std::string& quantity, const std::string& axis) const {
  const std::vector<std::string> axes{"step", "tokens", "time"};
  if (std::ranges::find(axes, axis) == axes.end()) {
    throw UsageError({"train.log", axis, "is not one of " + join(axes), "", "use '" + nearest(axis, axes) + "'"});
  }
  Series series;
  for (const MetricsLine& line : lines_) {
    const auto found = line.numbers.find(quantity);
    if (found == line.numbers.end() || (axis != "time" && !line.numbers.contains(axis))) continue;
    if (axis == "time" && line.seconds < 0) {
      throw UsageError({"train.log", (run_ / "train.log").string(),
                        fmt::format("the line of step {} has no time", line.step), "", "use step or tokens"});
    }
    series.x.push_back(axis == "time" ? (line.seconds - lines_.front().seconds) / 3600 : line.numbers.at(axis));
    series.y.push_back(found->second);
  }
  if (!series.x.empty()) return series;
  const std::vector<std::string> names = quantities();
  throw UsageError({"train.log", quantity, "is in no line of " + (run_ / "train.log").string(), "",
                    names.empty() ? "train at least one step" : "the nearest is '" + nearest(quantity, names) + "'"});
}

}  // namespace caravan
