#include "caravan/recipe/points_file.h"

#include <charconv>
#include <fstream>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <fmt/format.h>

#include "caravan/base/error.h"

namespace caravan {
namespace {

constexpr const char* kPoints = "optimizer.points";
constexpr const char* kPointsFile = "optimizer.points_file";
constexpr const char* kHeader = "step,fraction";

[[noreturn]] void refuse_line(const std::string& where, const std::string& fact) {
  throw UsageError(
      {"recipe", kPointsFile, fact, where, "give a step and a fraction of lr in each line, as in 1000,0.1"});
}

std::string_view stripped(std::string_view text) {
  constexpr std::string_view kSpaces = " \t\r";
  const size_t begin = text.find_first_not_of(kSpaces);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpaces) - begin + 1);
}

template <class T>
bool read_number(std::string_view text, T& number) {
  const auto read = std::from_chars(text.data(), text.data() + text.size(), number);
  return read.ec == std::errc() && read.ptr == text.data() + text.size();
}

StepPoint point_of(std::string_view line, const std::string& where) {
  StepPoint point{};
  const size_t cut = line.find_first_of(",\t");
  const bool is_point = cut != std::string_view::npos && read_number(stripped(line.substr(0, cut)), point.step) &&
                        read_number(stripped(line.substr(cut + 1)), point.value);
  if (!is_point) refuse_line(where, fmt::format("'{}' is not a step and a number", line.substr(0, 60)));
  if (!(point.value >= 0 && point.value <= 1)) {
    refuse_line(where, fmt::format("{} is no fraction of lr from 0 to 1", point.value));
  }
  return point;
}

std::vector<StepPoint> points_in(std::istream& in, const std::string& file) {
  std::vector<StepPoint> points;
  int64_t number = 0;
  for (std::string text; std::getline(in, text);) {
    const std::string where = fmt::format("{}:{}", file, ++number);
    const std::string_view line = stripped(text);
    if (line.empty() || (number == 1 && (line == kHeader || line == "step\tfraction"))) continue;
    const StepPoint point = point_of(line, where);
    if (point.step < 0) refuse_line(where, fmt::format("step {} is negative", point.step));
    if (!points.empty() && point.step <= points.back().step) {
      refuse_line(where, fmt::format("step {} comes after step {}: steps must rise", point.step, points.back().step));
    }
    points.push_back(point);
  }
  if (points.empty()) refuse_line(file, "has no points");
  return points;
}

bool is_override(const Recipe& recipe, const char* key) {
  const auto found = recipe.locations.find(key);
  return found != recipe.locations.end() && found->second.starts_with("--set");
}

}  // namespace

void read_points_file(Recipe& recipe, const std::filesystem::path& folder) {
  Setting& schedule = recipe.optimizer.rate.schedule;
  if (!schedule.reads("points_file") || schedule.text("points_file").empty()) return;
  const std::string name = schedule.text("points_file");
  const bool is_new = is_override(recipe, kPointsFile), has_new_points = is_override(recipe, kPoints);
  if (recipe.locations.contains(kPoints) && is_new == has_new_points) {
    recipe.refuse(kPointsFile, "is given beside optimizer.points", "leave one of them out");
  }
  schedule.set("points_file", std::string());
  if (has_new_points) return;
  for (const std::filesystem::path& file : {std::filesystem::path(name), folder / name}) {
    std::error_code error;
    std::ifstream in(file);
    if (!in.is_open() || std::filesystem::is_directory(file, error)) continue;
    schedule.set("points", points_in(in, file.string()));
    recipe.locations[kPoints] = fmt::format("{}, read from {}", recipe.where(kPointsFile), file.string());
    return;
  }
  recipe.refuse(kPointsFile, fmt::format("'{}' cannot be read", name),
                "name a file of lines step,fraction, from the current folder or beside the recipe");
}

}  // namespace caravan
