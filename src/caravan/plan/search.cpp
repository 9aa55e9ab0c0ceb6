#include "caravan/plan/search.h"

#include <algorithm>
#include <ctime>
#include <map>
#include <set>
#include <utility>

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include "caravan/base/divisors.h"
#include "caravan/base/error.h"
#include "caravan/base/text.h"
#include "caravan/plan/neighbours.h"
#include "caravan/registry/registry.h"
#include "caravan/techniques/offload/kinds.h"

namespace caravan {
namespace {

/// Smaller is better: layouts that fit by their time, others by their memory.
std::pair<bool, double> rank_of(const Prediction& one) {
  return {!one.fits(), one.fits() ? one.seconds : static_cast<double>(one.memory.total())};
}

bool is_before(const PlannedLayout& a, const PlannedLayout& b) { return rank_of(a.prediction) < rank_of(b.prediction); }

/// On one data-parallel rank all techniques are one.
Recipe canonical(const Recipe& recipe, int num_ranks) {
  if (recipe.data_parallel.is_first() || plan_batch(recipe, num_ranks).dp > 1) return recipe;
  const std::string& first = first_of("data_parallel").name;
  return changed_recipe(recipe, {{"data_parallel.technique", first}}, num_ranks).value_or(recipe);
}

/// Whether its step is that of one process, and a rehearsal knows it.
bool is_exact(const Recipe& recipe) {
  return std::ranges::all_of(techniques_of(recipe), [](const Setting& each) {
    return each.has(Trait::whole_gradient) && each.has(Trait::rehearses);
  });
}

class Search {
 public:
  Search(const Predictor& predictor, const SearchOptions& options)
      : predictor_(predictor), end_(std::clock() + static_cast<std::clock_t>(options.seconds * CLOCKS_PER_SEC)) {}

  /// Null: it is not legal, or time is up.
  const PlannedLayout* estimate(const Recipe& given) {
    const Recipe recipe = canonical(given, predictor_.num_ranks());
    const std::string text = layout_text(recipe, predictor_.num_ranks());
    const auto known = known_.find(text);
    if (known != known_.end()) return known->second ? &*known->second : nullptr;
    if (std::clock() > end_) {
      is_complete_ = false;
      return nullptr;
    }
    std::optional<PlannedLayout>& layout = known_[text];
    try {
      if (is_exact(recipe)) layout = PlannedLayout{recipe, text, predictor_.estimate(recipe)};
    } catch (const Error&) {       // NOLINT: not possible on these ranks, which is no news
    } catch (const c10::Error&) {  // NOLINT: sizes that no tensor has
    }
    return layout ? &*layout : nullptr;
  }

  /// To better neighbours, until there is none.
  void climb(const PlannedLayout* from) {
    while (from != nullptr && climbed_.insert(from->text).second) {
      const PlannedLayout* best = from;
      for (const Neighbour& neighbour : neighbours(from->recipe, predictor_.num_ranks(), /*is_auto=*/false)) {
        const PlannedLayout* one = estimate(neighbour.recipe);
        if (one != nullptr && is_before(*one, *best)) best = one;
      }
      from = best == from ? nullptr : best;
    }
  }

  std::vector<PlannedLayout> all() const {
    std::vector<PlannedLayout> all;
    for (const auto& [text, layout] : known_) {
      if (layout) all.push_back(*layout);
    }
    std::ranges::stable_sort(all, is_before);
    return all;
  }
  bool is_complete() const noexcept { return is_complete_; }

 private:
  const Predictor& predictor_;
  std::clock_t end_;
  bool is_complete_ = true;
  std::map<std::string, std::optional<PlannedLayout>> known_;
  std::set<std::string> climbed_;
};

/// The recipe with other degrees; nothing if that is not legal.
std::optional<Recipe> with_degrees(const Recipe& recipe, int64_t tp, int64_t pp, int num_ranks) {
  const int64_t others = ranks_per_replica(recipe) / recipe.tensor_parallel.degree / recipe.pipeline.degree;
  const int64_t replica = others * tp * pp;
  if (num_ranks % replica != 0) return std::nullopt;
  return changed_recipe(recipe, {{"mesh.tp", tp}, {"mesh.pp", pp}, {"mesh.dp", num_ranks / replica}}, num_ranks);
}

}  // namespace

std::string layout_text(const Recipe& recipe, int num_ranks) {
  const BatchPlan plan = plan_batch(recipe, num_ranks);
  std::vector<std::string> parts;
  const std::string split = split_text(recipe, plan.dp);
  std::string technique = recipe.data_parallel.name();
  for (const SettingKey& key : recipe.data_parallel.entry().keys) {
    const RecipeValue& value = recipe.data_parallel.value(key.name);
    if (value != key.initial) technique += fmt::format(" {} {}", key.name, to_toml(value));
  }
  parts.push_back(split.empty() ? fmt::format("dp {}", plan.dp) : split);
  if (plan.dp > 1) parts.push_back(technique);
  if (!recipe.memory.recompute.is_none()) {
    const Setting& recompute = recipe.memory.recompute;
    std::string text = "recompute " + recompute.name();
    for (const SettingKey& key : recompute.entry().keys) {
      if (recompute.value(key.name) != key.initial) text += " " + to_toml(recompute.value(key.name));
    }
    parts.push_back(text);
  }
  for (const char* kind : kOffloadKinds) {
    if (recipe.offload.text(kind) != "none") parts.push_back(fmt::format("{} on {}", kind, recipe.offload.text(kind)));
  }
  for (const Split* kind : {&recipe.tensor_parallel, &recipe.context_parallel, &recipe.expert_parallel}) {
    if (!kind->is_used()) continue;
    for (const SettingKey& key : kind->kind.entry().keys) {
      const RecipeValue& value = kind->kind.value(key.name);
      if (value != key.initial) parts.push_back(fmt::format("{} {}", key.name, to_toml(value)));
    }
  }
  if (recipe.tiling.reads("tiles") && recipe.tiling.whole("tiles") > 1) {
    parts.push_back(fmt::format("{} tiles", recipe.tiling.whole("tiles")));
  }
  if (recipe.pipeline.is_used() && recipe.pipeline.chunks() > 1) {
    parts.push_back(fmt::format("{} stages a rank", recipe.pipeline.chunks()));
  }
  parts.push_back(fmt::format("{} x {} sequences", plan.accumulation, plan.micro_batch));
  return join(parts);
}

SearchResult search_layouts(const Recipe& recipe, const Predictor& predictor, const SearchOptions& options) {
  const int num_ranks = predictor.num_ranks();
  Search search(predictor, options);
  SearchResult result;
  Recipe start = recipe;
  for (const char* kind : kOffloadKinds) {  // the search offloads what it has to
    if (start.offload.text(kind) == "auto") start.offload.set(kind, std::string("none"));
  }
  if (start.train.micro_batch == kAutoMicroBatch && !start.pipeline.is_used()) {
    start.train.micro_batch = row_parts(start);
  }
  try {
    start = parse_recipe(to_toml(start), "recipe");
    start.folder = recipe.folder;
    start.pipeline.table = recipe.pipeline.table;
    const std::string text = layout_text(start, num_ranks);
    result.own = PlannedLayout{start, text, predictor.predict(start)};
    if (is_exact(start)) search.estimate(start);
  } catch (const Error& error) {
    result.own_error = error.what();
  } catch (const c10::Error& error) {
    result.own_error = error.what_without_backtrace();
  }
  for (const int64_t tp : divisors(num_ranks, 1, num_ranks)) {
    for (const int64_t pp : divisors(num_ranks / tp, 1, num_ranks)) {
      if (const auto seed = with_degrees(start, tp, pp, num_ranks)) search.estimate(*seed);
    }
  }
  constexpr size_t kClimbs = 4;
  const std::vector<PlannedLayout> seeds = search.all();
  for (size_t i = 0; i < std::min(kClimbs, seeds.size()); ++i) search.climb(search.estimate(seeds[i].recipe));
  result.estimated = search.all();
  result.is_complete = search.is_complete();
  for (const PlannedLayout& layout : result.estimated) {
    if (result.best.size() == options.most_rows) break;
    if (!result.best.empty() && result.best.front().prediction.fits() && !layout.prediction.fits()) break;
    PlannedLayout whole{layout.recipe, layout.text, {}};
    try {
      whole.prediction = predictor.predict(layout.recipe);
    } catch (const Error&) {
      continue;
    } catch (const c10::Error&) {
      continue;
    }
    const bool is_new = std::ranges::none_of(result.best, [&](const PlannedLayout& other) {
      return other.prediction.seconds == whole.prediction.seconds &&
             other.prediction.memory.total() == whole.prediction.memory.total();
    });
    if (is_new) result.best.push_back(std::move(whole));
  }
  std::ranges::stable_sort(result.best, is_before);
  return result;
}

}  // namespace caravan
