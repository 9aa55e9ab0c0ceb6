#include "caravan/plan/search.h"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <functional>
#include <set>
#include <tuple>
#include <utility>

#include <c10/util/Exception.h>

#include "caravan/base/error.h"
#include "caravan/plan/estimated_layouts.h"
#include "caravan/plan/if_possible.h"
#include "caravan/plan/neighbours.h"
#include "caravan/plan/refine.h"
#include "caravan/plan/sketch_queue.h"
#include "caravan/registry/registry.h"
#include "caravan/techniques/offload/kinds.h"

namespace caravan {
namespace {

/// Of layouts as good as each other, within a hundredth, the simplest: little offload, an early technique of the list.
auto order_of(const PlannedLayout& layout) {
  const auto offloaded = std::ranges::count_if(
      kOffloadKinds, [&](const char* kind) { return layout.recipe.offload.text(kind) != "none"; });
  const auto [does_not_fit, size] = badness(layout.prediction, offloaded > 0);
  const std::vector<std::string> names = names_of("data_parallel");
  const auto technique = std::ranges::find(names, layout.recipe.data_parallel.name()) - names.begin();
  return std::tuple(does_not_fit, std::llround(100 * std::log(std::max(size, 1e-30))), offloaded, technique, size);
}

bool is_before(const PlannedLayout& a, const PlannedLayout& b) { return order_of(a) < order_of(b); }

/// On one data-parallel rank all techniques are one.
Recipe canonical(const Recipe& recipe, int num_ranks) {
  if (recipe.data_parallel.is_first() || plan_batch(recipe, num_ranks).dp > 1) return recipe;
  const std::string& first = first_of("data_parallel").name;
  return changed_recipe(recipe, {{"data_parallel.technique", first}}, num_ranks).value_or(recipe);
}

bool is_exact(const Recipe& recipe) {
  return std::ranges::all_of(techniques_of(recipe), [](const Setting& each) { return is_exact(each); });
}

std::optional<Recipe> with_larger_micro_batch(const Recipe& recipe, int64_t times, int num_ranks) {
  const BatchPlan plan = plan_batch(recipe, num_ranks);
  if (!recipe.pipeline.is_used()) {
    return changed_recipe(recipe, {{"train.micro_batch", plan.micro_batch * times}}, num_ranks);
  }
  if (plan.accumulation % times != 0) return std::nullopt;
  return changed_recipe(recipe, {{"pipeline.micro_batches", plan.accumulation / times}}, num_ranks);
}

// Until when a search does what, in times of SearchOptions::seconds: sketches, estimates of promising ones, (until 1)
// of neighbours, whole rehearsals.
constexpr double kSketching = 0.3, kSeeding = 0.6, kWhole = 1.5;

class Search {
 public:
  Search(const Predictor& predictor, const SearchOptions& options)
      : predictor_(predictor),
        options_(options),
        begin_(std::clock()),
        layouts_([end = end_of(1)] { return std::clock() > end; }) {}

  /// When so many times SearchOptions::seconds have passed.
  std::clock_t end_of(double share) const noexcept {
    return begin_ + static_cast<std::clock_t>(share * options_.seconds * CLOCKS_PER_SEC);
  }

  /// Whether a layout may be chosen beside the recipe's.
  bool may_choose(const Recipe& recipe) const {
    return is_exact(recipe) && (!options_.allows || options_.allows(recipe));
  }

  /// Null: it is not legal, or time is up.
  const PlannedLayout* estimate(const Recipe& given) {
    const Recipe recipe = canonical(given, predictor_.num_ranks());
    const std::string text = layout_text(recipe, predictor_.num_ranks());
    return layouts_.find_or_make(text, [&]() -> std::optional<PlannedLayout> {
      if (options_.progress) options_.progress(layouts_.size());
      // The memory of a processor's host is that of its ranks.
      if (predictor_.hardware().device_of(0).is_processor && uses_tier(recipe.offload, "host")) return std::nullopt;
      if (!may_choose(recipe)) return std::nullopt;
      const auto prediction = if_possible([&] { return predictor_.estimate(recipe); });
      if (!prediction) return std::nullopt;
      return PlannedLayout{recipe, text, *prediction};
    });
  }

  /// A layout that was rehearsed whole.
  void add(const PlannedLayout& layout) { layouts_.add(layout); }

  /// To better neighbours, until there is none.
  void climb(const PlannedLayout* from) {
    layouts_.climb(from, [&](const PlannedLayout& one) { return best_neighbour(one); });
  }

  std::vector<PlannedLayout> all() const {
    std::vector<PlannedLayout> all = layouts_.all();
    std::ranges::stable_sort(all, is_before);
    return all;
  }
  bool is_complete() const noexcept { return layouts_.is_complete(); }

 private:
  /// The best neighbour. What recomputation frees pays only with larger micro-batches, so these go together.
  const PlannedLayout* best_neighbour(const PlannedLayout& from) {
    const PlannedLayout* best = &from;
    const auto consider = [&](const Recipe& recipe) {
      const PlannedLayout* one = estimate(recipe);
      if (one != nullptr && is_before(*one, *best)) best = one;
    };
    const int num_ranks = predictor_.num_ranks();
    for (const Neighbour& neighbour : neighbours(from.recipe, num_ranks, /*is_auto=*/false)) {
      consider(neighbour.recipe);
      if (neighbour.recipe.memory.recompute.name() == from.recipe.memory.recompute.name()) continue;
      for (const int64_t times : {2, 4, 8}) {
        if (const auto larger = with_larger_micro_batch(neighbour.recipe, times, num_ranks)) consider(*larger);
      }
    }
    return best;
  }

  const Predictor& predictor_;
  const SearchOptions& options_;
  std::clock_t begin_;
  EstimatedLayouts<PlannedLayout> layouts_;
};

/// What a sentence compares layouts by; the best sketch that has it is estimated.
std::vector<std::function<bool(const LayoutSketch&)>> compared_features(const std::vector<LayoutSketch>& sketches) {
  std::vector<std::function<bool(const LayoutSketch&)>> all;
  for (const bool has : {false, true}) {
    all.emplace_back([has](const LayoutSketch& one) { return (one.split.tp > 1) == has; });
    all.emplace_back([has](const LayoutSketch& one) { return (one.pp > 1) == has; });
    all.emplace_back([has](const LayoutSketch& one) { return (one.split.cp > 1) == has; });
    all.emplace_back([has](const LayoutSketch& one) { return (one.split.recompute != "none") == has; });
  }
  std::set<std::string> techniques;
  for (const LayoutSketch& one : sketches) techniques.insert(one.technique);
  for (const std::string& name : techniques) {
    all.emplace_back([name](const LayoutSketch& one) { return one.technique == name; });
  }
  return all;
}

/// Estimates the most promising layouts until no other promises to be better, and then those of sentences.
void estimate_promising(Search& search, const Sketcher& sketcher, SketchQueue& queue, std::clock_t end) {
  constexpr double kMargin = 1.1;  // of sketches over estimates
  constexpr int kMisfits = 8;      // then neighbours of the least ones, which offload
  double best = 0;
  int num_misfits = 0;
  std::vector<LayoutSketch> estimated;
  const auto estimate = [&](const LayoutSketch& sketch) {
    const auto recipe = sketcher.recipe_of(sketch);
    const PlannedLayout* one = recipe ? search.estimate(*recipe) : nullptr;
    if (one == nullptr) return;
    estimated.push_back(sketch);
    queue.learn(sketch, one->prediction);
    const Prediction& prediction = one->prediction;
    if (prediction.fits() && (best == 0 || prediction.seconds < best)) best = prediction.seconds;
  };
  while (std::clock() < end) {
    const LayoutSketch* next = queue.take();
    if (next == nullptr) return;
    if (best > 0 && (!queue.fits(*next) || queue.seconds(*next) > kMargin * best)) break;
    if (!queue.fits(*next) && ++num_misfits > kMisfits) break;
    estimate(*next);
  }
  for (const auto& has : compared_features(queue.sketches())) {
    if (std::clock() > end) return;
    if (std::ranges::any_of(estimated, has)) continue;
    if (const LayoutSketch* next = queue.take(has)) estimate(*next);
  }
}

/// The recipe as a search starts from it: without choices that it makes itself.
Recipe start_of(const Recipe& recipe) {
  Recipe start = recipe;
  for (const char* kind : kOffloadKinds) {  // the search offloads what it has to
    if (start.offload.text(kind) == "auto") start.offload.set(kind, std::string("none"));
  }
  if (start.train.micro_batch == kAutoMicroBatch && !start.pipeline.is_used()) {
    start.train.micro_batch = row_parts(start);
  }
  return start;
}

void sort_planned(std::vector<PlannedLayout>& layouts) { std::ranges::stable_sort(layouts, is_before); }

}  // namespace

SearchResult search_layouts(const Recipe& recipe, const Predictor& predictor, const SearchOptions& options) {
  const int num_ranks = predictor.num_ranks();
  SearchResult result;
  Recipe start = start_of(recipe);
  try {
    start = legal_recipe(start, num_ranks);
    const std::string text = layout_text(start, num_ranks);
    result.own = PlannedLayout{start, text, predictor.predict(start), /*is_whole=*/true};
  } catch (const Error& error) {
    result.own_error = error.what();
  } catch (const c10::Error& error) {
    result.own_error = error.what_without_backtrace();
  }
  Search search(predictor, options);  // its time begins
  if (result.own && is_exact(start)) search.add(*result.own);
  const auto room = static_cast<double>(predictor.room_bytes(start));
  Sketcher sketcher(predictor, start);
  SketchQueue queue(sketcher.all(room, search.end_of(kSketching)), room);
  result.num_counted = queue.sketches().size();
  const bool is_counted = sketcher.is_complete();
  estimate_promising(search, sketcher, queue, search.end_of(kSeeding));
  constexpr size_t kClimbs = 4;
  const std::vector<PlannedLayout> seeds = search.all();
  for (size_t i = 0; i < std::min(kClimbs, seeds.size()); ++i) search.climb(search.estimate(seeds[i].recipe));
  result.estimated = search.all();
  result.is_complete = search.is_complete() && is_counted;
  const bool has_fitting = !result.estimated.empty() && result.estimated.front().prediction.fits();
  const double best = has_fitting ? result.estimated.front().prediction.seconds : 0;
  const auto may_choose = [&](const Recipe& recipe) { return search.may_choose(recipe); };
  for (PlannedLayout& refined :
       refined_layouts(sketcher, queue, predictor,
                       {.best_seconds = best, .may_choose = may_choose, .end = search.end_of(kWhole)})) {
    result.estimated.push_back(std::move(refined));
  }
  sort_planned(result.estimated);
  constexpr size_t kLeast = 3;
  const auto predict = [&](PlannedLayout& layout) -> std::optional<Prediction> {
    if (layout.is_whole) return layout.prediction;
    auto whole = if_possible([&] { return predictor.predict(layout.recipe); });
    layout.is_whole = whole.has_value();
    return whole;
  };
  const auto is_over = [end = search.end_of(kWhole)](const auto& best) { return !best.empty() && std::clock() > end; };
  result.best = predict_best(result.estimated, options.most_rows, kLeast, predict, is_over, sort_planned);
  return result;
}

}  // namespace caravan
