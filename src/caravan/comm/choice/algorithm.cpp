#include "caravan/comm/choice/algorithm.h"

#include <algorithm>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/text.h"

namespace caravan::algorithms {

std::string_view name(Algorithm algorithm) noexcept {
  switch (algorithm) {
    case Algorithm::direct: return "direct";
    case Algorithm::ring: return "ring";
    case Algorithm::recursive_doubling: return "recursive_doubling";
    case Algorithm::rabenseifner: return "rabenseifner";
    case Algorithm::binomial: return "binomial";
    case Algorithm::chain: return "chain";
  }
  return "?";
}

std::span<const Algorithm> algorithms_for(Verb verb) noexcept {
  using enum Algorithm;
  static constexpr Algorithm kAllReduce[] = {direct, ring, recursive_doubling, rabenseifner};
  static constexpr Algorithm kAllGather[] = {direct, ring, recursive_doubling};
  static constexpr Algorithm kReduceScatter[] = {direct, ring};
  static constexpr Algorithm kAllToAll[] = {direct};
  static constexpr Algorithm kBroadcast[] = {direct, binomial, chain};
  static constexpr Algorithm kReduce[] = {direct, binomial};
  switch (verb) {
    case Verb::all_reduce: return kAllReduce;
    case Verb::all_gather: return kAllGather;
    case Verb::reduce_scatter: return kReduceScatter;
    case Verb::all_to_all: return kAllToAll;
    case Verb::broadcast: return kBroadcast;
    case Verb::reduce: return kReduce;
    case Verb::send:
    case Verb::recv:
    case Verb::barrier: return {};
  }
  return {};
}

bool serves(Algorithm algorithm, Verb verb) noexcept {
  return std::ranges::find(algorithms_for(verb), algorithm) != algorithms_for(verb).end();
}

std::string path_of(std::string_view backend, Verb verb, Algorithm algorithm) {
  return fmt::format("{} {} by {}", backend, caravan::name(verb), name(algorithm));
}

void check_serves(Algorithm algorithm, Verb verb) {
  if (serves(algorithm, verb)) return;
  std::vector<std::string> names;
  for (const Algorithm other : algorithms_for(verb)) names.emplace_back(name(other));
  throw UsageError({.op = std::string(caravan::name(verb)),
                    .fact = fmt::format("there is no {} for {}", name(algorithm), caravan::name(verb)),
                    .action = names.empty() ? "this verb has no algorithms" : "choose from " + join(names)});
}

}  // namespace caravan::algorithms
