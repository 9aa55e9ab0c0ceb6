#include <algorithm>
#include <functional>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "caravan/base/text.h"
#include "caravan/plan/search.h"
#include "caravan/techniques/offload/kinds.h"

namespace caravan {
namespace {

constexpr double kWorthSaying = 0.01;  ///< a smaller difference is within the error of a prediction

/// Something that a layout has or has not.
struct Feature {
  std::string name;  ///< "pipeline stages"
  std::function<bool(const Recipe&)> has;
};

std::vector<Feature> features_of(const std::vector<PlannedLayout>& layouts) {
  std::vector<Feature> all{
      {"tensor parallelism", [](const Recipe& recipe) { return recipe.tensor_parallel.is_used(); }},
      {"pipeline stages", [](const Recipe& recipe) { return recipe.pipeline.is_used(); }},
      {"context parallelism", [](const Recipe& recipe) { return recipe.context_parallel.is_used(); }},
      {"recomputation", [](const Recipe& recipe) { return !recipe.memory.recompute.is_none(); }},
      {"offload", [](const Recipe& recipe) { return is_offload_used(recipe.offload); }}};
  std::set<std::string> techniques;
  for (const PlannedLayout& layout : layouts) techniques.insert(layout.recipe.data_parallel.name());
  for (const std::string& name : techniques) {
    all.push_back({name, [name](const Recipe& recipe) { return recipe.data_parallel.name() == name; }});
  }
  return all;
}

std::string seconds_text(double seconds) {
  return seconds < 1 ? fmt::format("{:.3g} ms", 1e3 * seconds) : fmt::format("{:.3g} s", seconds);
}

/// Where the slower of two layouts loses its time: "waits 2.1 s more for dp".
std::string loss_text(const Prediction& slow, const Prediction& fast) {
  std::vector<std::pair<double, std::string>> losses;
  const auto add = [&](double more, const std::string& text) { losses.emplace_back(more, text); };
  std::set<std::string> axes;
  for (const auto& [axis, seconds] : slow.waits) axes.insert(axis);
  for (const std::string& axis : axes) {
    const auto of = [&](const Prediction& one) {
      const auto found = one.waits.find(axis);
      return found == one.waits.end() ? 0.0 : found->second;
    };
    const double more = of(slow) - of(fast);
    add(more, fmt::format("waits {} more for {}", seconds_text(more), wait_name(axis)));
  }
  const double computes = slow.computes - fast.computes;
  add(computes, fmt::format("computes {} longer", seconds_text(computes)));
  const auto most = std::ranges::max_element(losses);
  return most == losses.end() || most->first <= 0 ? "" : ": it " + most->second;
}

const PlannedLayout* fastest(const std::vector<PlannedLayout>& layouts, const std::function<bool(const Recipe&)>& has) {
  const auto found = std::ranges::find_if(layouts, [&](const PlannedLayout& one) { return has(one.recipe); });
  return found == layouts.end() ? nullptr : &*found;
}

/// What the best layout gains from having a feature, or from not having it.
std::string sentence_of(const Feature& feature, const PlannedLayout& best, const PlannedLayout& other) {
  const bool has = feature.has(best.recipe);
  const std::string with = has ? "without " + feature.name : "with " + feature.name;
  const Prediction& one = other.prediction;
  if (!one.fits()) {
    return fmt::format("none that was estimated {} fits: the least needs {} of {} ({})", with,
                       format_bytes(one.memory.total()), format_bytes(one.room_bytes), other.text);
  }
  return fmt::format("{} against {} for the best that was estimated {} ({}){}", seconds_text(best.prediction.seconds),
                     seconds_text(one.seconds), with, other.text, loss_text(one, best.prediction));
}

}  // namespace

std::vector<std::string> advice_of(const SearchResult& result, int num_ranks) {
  std::vector<std::string> sentences;
  if (result.best.empty()) {
    return {result.is_complete ? "no layout is legal on these ranks: caravan inspect says why"
                               : "no layout was estimated in time: give more with --seconds"};
  }
  const PlannedLayout& best = result.best.front();
  const Prediction& least = best.prediction;
  const size_t num_estimated = result.estimated.size();
  if (!least.fits()) {
    const bool is_device = least.memory.total() > least.room_bytes;
    const int64_t needed = is_device ? least.memory.total() : least.host_bytes;
    const int64_t room = is_device ? least.room_bytes : least.host_room_bytes;
    sentences.push_back(
        fmt::format("none of the {} layouts that were estimated fits {} rank{}: the least needs {}, {} "
                    "more than the {} of a {}",
                    num_estimated, num_ranks, num_ranks == 1 ? "" : "s", format_bytes(needed),
                    format_bytes(needed - room), format_bytes(room), is_device ? "device" : "host"));
    for (size_t i = 0; i < std::min<size_t>(3, result.best.size()); ++i) {
      const PlannedLayout& one = result.best[i];
      sentences.push_back(fmt::format("{}: {} in {}", one.text, format_bytes(one.prediction.memory.total()),
                                      one.prediction.peak_event));
    }
    return sentences;
  }
  for (const Feature& feature : features_of(result.estimated)) {
    const bool has = feature.has(best.recipe);
    const PlannedLayout* other =
        fastest(result.estimated, [&](const Recipe& recipe) { return feature.has(recipe) != has; });
    if (other == nullptr) continue;
    const double more = other->prediction.seconds / least.seconds - 1;
    if (!other->prediction.fits() || more > kWorthSaying) sentences.push_back(sentence_of(feature, best, *other));
  }
  return sentences;
}

}  // namespace caravan
