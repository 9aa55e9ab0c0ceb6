#include "caravan/recipe/points_file.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <fmt/format.h>

#include "caravan/base/byte_order_mark.h"
#include "caravan/base/error.h"
#include "caravan/recipe/is_override.h"

namespace caravan {
namespace {

constexpr const char* kPoints = "optimizer.points";
constexpr const char* kPointsFile = "optimizer.points_file";
constexpr const char* kSchedule = "optimizer.schedule";
constexpr const char* kWarmup = "optimizer.warmup_steps";
constexpr const char* kHeader = "step,fraction";
constexpr int64_t kMostPoints = 10'000;  // they are kept in every checkpoint

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
    if (number == 1 && text.starts_with(kByteOrderMark)) text.erase(0, kByteOrderMark.size());
    const std::string_view line = stripped(text);
    if (line.empty() || (number == 1 && (line == kHeader || line == "step\tfraction"))) continue;
    const StepPoint point = point_of(line, where);
    if (point.step < 0) refuse_line(where, fmt::format("step {} is negative", point.step));
    if (!points.empty() && point.step <= points.back().step) {
      refuse_line(where, fmt::format("step {} comes after step {}: steps must rise", point.step, points.back().step));
    }
    points.push_back(point);
    if (std::ssize(points) > kMostPoints) {
      refuse_line(where, fmt::format("has more than {} points; rates between two points are on a line", kMostPoints));
    }
  }
  if (points.empty()) refuse_line(file, "has no points");
  return points;
}

/// Those that the schedule follows.
const std::vector<StepPoint>& points_of(const Recipe& recipe) {
  static const std::vector<StepPoint> none;
  const Setting& schedule = recipe.optimizer.rate.schedule;
  return schedule.reads("points") ? schedule.points("points") : none;
}

bool have_first_step(const std::vector<StepPoint>& points) { return !points.empty() && points.front().step <= 1; }

}  // namespace

void refuse_unused_points(const Recipe& recipe, RecipeWriter writer) {
  const Setting& schedule = recipe.optimizer.rate.schedule;
  if (schedule.reads("points")) return;
  for (const char* key : {kPoints, kPointsFile}) {
    const bool is_of_run = writer == RecipeWriter::run && !is_override(recipe, key);
    if (!recipe.locations.contains(key) || is_of_run) continue;
    const bool is_empty = key == kPoints ? schedule.points("points").empty() : schedule.text("points_file").empty();
    if (is_empty) continue;
    recipe.refuse(key,
                  fmt::format("is not followed with {} = \"{}\"{}", kSchedule, schedule.name(),
                              recipe.locations.contains(kSchedule) ? "" : ", the default"),
                  fmt::format("leave out {}, or set {} = \"piecewise\"", key, kSchedule));
  }
}

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
    if (!std::filesystem::is_regular_file(file, error)) continue;  // each rank reads it: a pipe would be empty
    std::ifstream in(file);
    if (!in.is_open()) continue;
    schedule.set("points", points_in(in, file.string()));
    recipe.locations[kPoints] = fmt::format("{}, read from {}", recipe.where(kPointsFile), file.string());
    return;
  }
  recipe.refuse(kPointsFile, fmt::format("'{}' cannot be read", name),
                "name a file of lines step,fraction, from the current folder or beside the recipe; to resume a run "
                "without it: train RUN/recipe.toml --resume, with the points of the run");
}

void choose_warmup(Recipe& recipe) {
  if (have_first_step(points_of(recipe)) && !recipe.locations.contains(kWarmup)) recipe.optimizer.rate.warmup_steps = 0;
}

std::string warmup_note(const Recipe& recipe) {
  const std::vector<StepPoint>& points = points_of(recipe);
  const int64_t warmup = recipe.optimizer.rate.warmup_steps;
  const auto hidden =
      std::ranges::count_if(points, [&](const StepPoint& point) { return point.step >= 1 && point.step <= warmup; });
  if (hidden > 0) {
    return fmt::format("{} is {}: the warm-up hides {} of the {} points of {}; {} = 0 follows all of them", kWarmup,
                       warmup, hidden, points.size(), kPoints, kWarmup);
  }
  if (!have_first_step(points) || recipe.locations.contains(kWarmup)) return "";
  return fmt::format("{} begin at step {}: {} is 0, not {}", kPoints, points.front().step, kWarmup,
                     Recipe().optimizer.rate.warmup_steps);
}

}  // namespace caravan
