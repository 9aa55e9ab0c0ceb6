#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "caravan/base/text.h"
#include "caravan/cost/hardware_costs.h"
#include "caravan/plan/hardware_advice.h"
#include "caravan/plan/if_possible.h"
#include "caravan/plan/neighbours.h"
#include "caravan/plan/plan_text.h"

namespace caravan {
namespace {

constexpr size_t kMostEstimated = 12;
constexpr double kFaster = 0.99;

/// Devices of a rate and above.
struct Part {
  Hardware hardware;
  int num_ranks = 0;
  std::string names{};  ///< "a100-80, v100-32"
};

/// The fastest kind of devices, the fastest two, .., without all.
std::vector<Part> fast_parts(const Predictor& predictor, const std::string& dtype) {
  const Hardware& hardware = predictor.hardware();
  std::vector<double> rates;
  for (int rank = 0; rank < predictor.num_ranks(); ++rank) {
    rates.push_back(HardwareCosts::rate_of(hardware.device_of(rank), dtype).flops);
  }
  const std::set<double, std::greater<>> kinds(rates.begin(), rates.end());
  std::vector<Part> parts;
  for (const double least : kinds) {
    if (least == *kinds.rbegin()) break;
    Part& part = parts.emplace_back(Part{hardware});
    part.hardware.hosts.clear();
    std::vector<std::string> names;
    int64_t end = 0;
    for (const HostKind& host : hardware.hosts) {
      const int64_t begin = end;
      end = std::min<int64_t>(begin + host.count * host.devices, predictor.num_ranks());
      if (begin == end || rates[static_cast<size_t>(begin)] < least) continue;
      part.hardware.hosts.push_back(host);
      part.num_ranks += static_cast<int>(end - begin);
      if (std::ranges::find(names, host.device) == names.end()) names.push_back(host.device);
    }
    part.names = join(names);
  }
  return parts;
}

/// With fewer data-parallel ranks.
std::optional<Recipe> on_fewer(const Recipe& recipe, int num_ranks) {
  const int64_t replica = ranks_per_replica(recipe);
  if (num_ranks % replica != 0) return std::nullopt;
  return changed_recipe(recipe, {{"mesh.dp", num_ranks / replica}}, num_ranks);
}

/// The fastest that fits, of the first layouts of a search on the devices of a part.
std::optional<PlannedLayout> fastest_on(const Part& part, const SearchResult& result, const Predictor& predictor) {
  const int num_ranks = part.num_ranks;
  const HardwareCosts costs(part.hardware);
  const Predictor some(part.hardware, costs, num_ranks, predictor.vocabulary());
  std::optional<PlannedLayout> fastest;
  size_t estimated = 0;
  for (const PlannedLayout& layout : result.estimated) {
    if (estimated == kMostEstimated) break;
    const auto recipe = on_fewer(layout.recipe, num_ranks);
    if (!recipe) continue;
    ++estimated;
    const auto one = if_possible([&] { return some.estimate(*recipe); });
    if (one && one->fits() && (!fastest || one->seconds < fastest->prediction.seconds)) {
      fastest = PlannedLayout{*recipe, layout_text(*recipe, num_ranks), *one};
    }
  }
  return fastest;
}

}  // namespace

std::string device_advice(const SearchResult& result, const Predictor& predictor) {
  if (result.best.empty() || predictor.hardware().is_uniform()) return "";
  const PlannedLayout& best = result.best.front();
  double least = result.fits() ? kFaster * best.prediction.seconds : HUGE_VAL;
  std::string sentence;
  for (const Part& part : fast_parts(predictor, best.recipe.precision.compute)) {
    const auto fastest = fastest_on(part, result, predictor);
    if (!fastest || fastest->prediction.seconds >= least) continue;
    least = fastest->prediction.seconds;
    sentence = fmt::format("the {} {} alone take {} ({}), all {} devices {}: the slower ones hold them up",
                           part.num_ranks, part.names, short_seconds(least), fastest->text, predictor.num_ranks(),
                           result.fits() ? short_seconds(best.prediction.seconds) : "do not fit");
  }
  return sentence;
}

}  // namespace caravan
