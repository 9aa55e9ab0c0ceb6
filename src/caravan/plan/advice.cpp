#include <algorithm>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "caravan/base/text.h"
#include "caravan/plan/search.h"
#include "caravan/plan/sentences.h"
#include "caravan/techniques/offload/kinds.h"

namespace caravan {
namespace {

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

std::vector<ComparedLayout> compared(const std::vector<PlannedLayout>& layouts, const std::vector<Feature>& features) {
  std::vector<ComparedLayout> all;
  for (const PlannedLayout& layout : layouts) {
    ComparedLayout& one = all.emplace_back(ComparedLayout{layout.text, layout.prediction});
    for (const Feature& feature : features) {
      if (feature.has(layout.recipe)) one.features.insert(feature.name);
    }
  }
  return all;
}

/// The lines of an error in one, without where its recipe says so: that is a layout of the search.
std::string in_one_line(const std::string& error) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin < error.size();) {
    const size_t end = std::min(error.find('\n', begin), error.size());
    const std::string line = error.substr(begin, end - begin);
    const size_t text = line.find_first_not_of(' ');
    const bool is_said = text != std::string::npos && !line.substr(text).starts_with("where:");
    if (is_said) parts.push_back(line.substr(line.starts_with('[') ? line.find(']') + 2 : text));
    begin = end + 1;
  }
  return join(parts, "; ");
}

}  // namespace

std::vector<std::string> advice_of(const SearchResult& result, int num_ranks) {
  if (result.best.empty()) {
    if (!result.is_complete) return {"no layout was estimated in time: give more with --seconds"};
    return {fmt::format("no layout is legal on {} rank{}{}", num_ranks, num_ranks == 1 ? "" : "s",
                        result.own_error.empty() ? "" : "; the recipe as it is: " + in_one_line(result.own_error))};
  }
  const std::vector<Feature> features = features_of(result.estimated);
  std::vector<std::string> names;
  for (const Feature& feature : features) names.push_back(feature.name);
  return sentences_of(compared(result.best, features), compared(result.estimated, features), names, num_ranks);
}

}  // namespace caravan
