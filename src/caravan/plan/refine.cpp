#include "caravan/plan/refine.h"

#include <algorithm>
#include <ctime>
#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "caravan/plan/if_possible.h"
#include "caravan/plan/neighbours.h"

namespace caravan {
namespace {

constexpr size_t kConsidered = 24, kRefined = 2;
constexpr int kTries = 3;       ///< of one, with less room each time
constexpr double kRoom = 0.97;  ///< of a device, for what sketches miss

/// Seconds of the same layers if nothing is chosen but the cut: all kept, on equal devices, as a sketch has them.
double sketched_seconds(UnitProblem problem) {
  for (std::vector<UnitWay>& ways : problem.units) ways.resize(1);
  for (StageDevice& stage : problem.stages) {
    stage.room_bytes = 0;
    stage.slowness = 1;
  }
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

/// A sketch with the choice for each of its layers.
struct Refined {
  const LayoutSketch* sketch;
  double room_share;  ///< of each device, that the choice had
  double seconds;     ///< that it promises
  Recipe recipe;
};

std::optional<Refined> refine(Sketcher& sketcher, const LayoutSketch& sketch, double seconds, double room_share,
                              int num_ranks) {
  const auto problem = sketcher.units_of(sketch, room_share);
  const auto choice = problem ? choose_units(*problem) : std::nullopt;
  const auto recipe = choice ? sketcher.recipe_of(sketch) : std::nullopt;
  auto own = recipe ? with_units(*recipe, *choice, num_ranks) : std::nullopt;
  if (!own) return std::nullopt;
  return Refined{&sketch, room_share, seconds * choice->seconds / sketched_seconds(*problem), std::move(*own)};
}

bool is_slower(double seconds, const RefineOptions& options) {
  return options.best_seconds > 0 && seconds >= options.best_seconds;
}

bool is_of_use(const Refined& one, const RefineOptions& options) {
  return options.may_choose(one.recipe) && !is_slower(one.seconds, options);
}

/// Rehearsed whole, and if it does not fit, chosen again with less room, by what its sketch misses. Nothing if it never
/// fits.
std::optional<PlannedLayout> with_room(Refined one, double sketch_seconds, Sketcher& sketcher,
                                       const Predictor& predictor, const RefineOptions& options) {
  for (int tries = 0; tries < kTries && std::clock() < options.end; ++tries) {
    const auto whole = if_possible([&] { return predictor.predict(one.recipe); });
    if (!whole) return std::nullopt;
    if (whole->fits()) {
      return PlannedLayout{one.recipe, layout_text(one.recipe, predictor.num_ranks()), *whole, /*is_whole=*/true};
    }
    const double share = static_cast<double>(whole->room_bytes) / static_cast<double>(whole->memory.total());
    auto next = refine(sketcher, *one.sketch, sketch_seconds, kRoom * share * one.room_share, predictor.num_ranks());
    if (!next || !is_of_use(*next, options)) return std::nullopt;
    one = std::move(*next);
  }
  return std::nullopt;
}

}  // namespace

std::vector<PlannedLayout> refined_layouts(Sketcher& sketcher, const SketchQueue& queue, const Predictor& predictor,
                                           const RefineOptions& options) {
  // On unlike devices an estimate of even stages tells little of others: there a sketch has to do.
  const bool is_uniform = predictor.hardware().is_uniform();
  const auto seconds_of = [&](const LayoutSketch& one) { return is_uniform ? queue.seconds(one) : one.seconds; };
  std::vector<const LayoutSketch*> promising;
  for (const LayoutSketch& one : queue.sketches()) {
    const bool can_gain = one.split.recompute == "none" && (is_uniform || one.pp > 1);
    if (can_gain && !is_slower(seconds_of(one), options)) promising.push_back(&one);
  }
  std::ranges::sort(promising, {}, [&](const LayoutSketch* one) { return seconds_of(*one); });
  if (promising.size() > kConsidered) promising.resize(kConsidered);
  std::vector<Refined> refined;
  for (const LayoutSketch* one : promising) {
    const double room_share = kRoom * one->bytes / std::max(1.0, queue.bytes(*one));
    auto own = refine(sketcher, *one, seconds_of(*one), room_share, predictor.num_ranks());
    if (own && is_of_use(*own, options)) refined.push_back(std::move(*own));
  }
  std::ranges::sort(refined, {}, &Refined::seconds);
  std::vector<PlannedLayout> best;
  for (Refined& one : refined) {
    if (best.size() == kRefined) break;
    const double sketch_seconds = seconds_of(*one.sketch);
    auto layout = with_room(std::move(one), sketch_seconds, sketcher, predictor, options);
    if (layout) best.push_back(std::move(*layout));
  }
  return best;
}

}  // namespace caravan
