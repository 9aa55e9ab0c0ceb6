#include "caravan/plan/refine.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "caravan/plan/neighbours.h"

namespace caravan {
namespace {

constexpr size_t kConsidered = 12, kRefined = 2;
constexpr double kRoom = 0.97;  ///< of a device, for what sketches miss

/// Seconds of the same layers if nothing is chosen: all kept, on any device.
double unrefined_seconds(UnitProblem problem) {
  for (std::vector<UnitWay>& ways : problem.units) ways.resize(1);
  for (StageDevice& stage : problem.stages) stage.room_bytes = 0;
  const auto choice = choose_units(problem);
  return choice ? choice->seconds : 0;
}

std::optional<Recipe> with_units(const Recipe& recipe, const UnitChoice& choice, int num_ranks) {
  std::vector<std::pair<std::string, RecipeValue>> keys;
  std::vector<std::string> again;
  for (size_t layer = 0; layer < choice.ways.size(); ++layer) {
    if (choice.ways[layer] == 1) again.push_back(fmt::format("blocks.{}", layer));
  }
  const bool is_mixed = !again.empty() && again.size() < choice.ways.size();
  if (is_mixed) {
    keys.emplace_back("memory.recompute", again);
  } else {
    keys.emplace_back("memory.recompute", std::string(again.empty() ? "none" : "full"));
  }
  if (choice.units_of_stage.size() > 1) keys.emplace_back("pipeline.cut", choice.units_of_stage);
  if (!is_mixed && choice.units_of_stage.size() == 1) return std::nullopt;  // no other than without a choice
  return changed_recipe(recipe, keys, num_ranks);
}

}  // namespace

std::vector<Recipe> refined_layouts(Sketcher& sketcher, const SketchQueue& queue, int num_ranks, double best_seconds,
                                    const std::function<bool(const Recipe&)>& may_choose) {
  std::vector<const LayoutSketch*> promising;
  for (const LayoutSketch& one : queue.sketches()) {
    const bool is_slower = best_seconds > 0 && queue.seconds(one) >= best_seconds;
    if (one.split.recompute == "none" && !is_slower) promising.push_back(&one);
  }
  std::ranges::sort(promising, {}, [&](const LayoutSketch* one) { return queue.seconds(*one); });
  if (promising.size() > kConsidered) promising.resize(kConsidered);
  std::vector<std::pair<double, Recipe>> refined;
  for (const LayoutSketch* one : promising) {
    const double room = kRoom * queue.room_bytes() * one->bytes / std::max(1.0, queue.bytes(*one));
    const auto problem = sketcher.units_of(*one, room);
    const auto choice = problem ? choose_units(*problem) : std::nullopt;
    const auto recipe = choice ? sketcher.recipe_of(*one) : std::nullopt;
    auto own = recipe ? with_units(*recipe, *choice, num_ranks) : std::nullopt;
    if (!own || !may_choose(*own)) continue;
    const double seconds = queue.seconds(*one) * choice->seconds / unrefined_seconds(*problem);
    if (best_seconds <= 0 || seconds < best_seconds) refined.emplace_back(seconds, std::move(*own));
  }
  std::ranges::sort(refined, {}, &std::pair<double, Recipe>::first);
  std::vector<Recipe> best;
  for (size_t i = 0; i < std::min(kRefined, refined.size()); ++i) best.push_back(std::move(refined[i].second));
  return best;
}

}  // namespace caravan
