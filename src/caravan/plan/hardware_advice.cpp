#include "caravan/plan/hardware_advice.h"

#include <algorithm>
#include <ctime>

#include <fmt/format.h>

#include "caravan/base/text.h"
#include "caravan/plan/neighbours.h"

namespace caravan {
namespace {

constexpr int kMostTried = 256;
constexpr std::clock_t kMostClocks = CLOCKS_PER_SEC;  ///< processor time for each question

/// The nearest numbers to `from`, below and above, that are legal, as far as they are found in time.
template <class IsLegal>
std::vector<int64_t> nearest_legal(int64_t from, const IsLegal& is_legal) {
  std::vector<int64_t> found;
  for (const int64_t step : {-1, 1}) {
    const std::clock_t end = std::clock() + kMostClocks;
    for (int64_t i = 1; i <= kMostTried && from + step * i >= 1 && std::clock() < end; ++i) {
      if (!is_legal(from + step * i)) continue;
      found.push_back(from + step * i);
      break;
    }
  }
  return found;
}

}  // namespace

std::string legal_advice(const Recipe& recipe, int num_ranks) {
  if (has_legal_degrees(recipe, num_ranks)) return "";
  const std::vector<int64_t> ranks =
      nearest_legal(num_ranks, [&](int64_t other) { return has_legal_degrees(recipe, static_cast<int>(other)); });
  const std::vector<int64_t> batches = nearest_legal(recipe.train.global_batch, [&](int64_t other) {
    Recipe changed = recipe;
    changed.train.global_batch = other;
    return has_legal_degrees(changed, num_ranks);
  });
  std::vector<std::string> choices;
  if (!ranks.empty()) choices.push_back(fmt::format("use {} ranks", join(ranks, " or ")));
  if (!batches.empty()) choices.push_back(fmt::format("use train.global_batch = {}", join(batches, " or ")));
  return choices.empty() ? "" : "the nearest that are legal: " + join(choices, ", or ");
}

std::vector<std::string> hardware_advice(const Recipe& recipe, const SearchResult& result, const Predictor& predictor) {
  std::vector<std::string> sentences{link_advice(result, predictor), device_advice(result, predictor)};
  if (result.best.empty() && result.is_complete) sentences.push_back(legal_advice(recipe, predictor.num_ranks()));
  std::erase(sentences, "");
  return sentences;
}

}  // namespace caravan
