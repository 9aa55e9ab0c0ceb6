#include <algorithm>

#include <fmt/format.h>

#include "caravan/base/divisors.h"
#include "caravan/base/text.h"
#include "caravan/registry/registry.h"
#include "caravan/techniques/context/exchange_heads.h"

namespace caravan {
namespace {

/// The ranks that exchange sequence for heads; the minimum if not given yet.
int64_t exchanging(const Setting& setting) { return std::max<int64_t>(setting.whole("exchange"), 2); }

std::optional<Misfit> check_both(const Setting& setting, int64_t ranks, const ModelConfig& model,
                                 const SplitParts& others) {
  const int64_t exchange = setting.whole("exchange");
  if (ranks == 1) return std::nullopt;
  if (auto misfit = misfit_of_text(model, ranks, /*has_ring=*/true)) return misfit;
  if (exchange >= 2 && exchange < ranks && ranks % exchange == 0) return misfit_of_heads(model, exchange, others);
  const std::string proper = join(divisors(ranks, 2, ranks - 1), " or ");
  std::vector<std::string> other_kinds = names_of("context_parallel");
  std::erase(other_kinds, setting.name());
  return Misfit{setting.full_name("exchange"),
                exchange == 0
                    ? fmt::format("is needed by kind \"{}\": a proper divisor of {} ranks", setting.name(), ranks)
                    : fmt::format("{} is not a proper divisor of {} ranks", exchange, ranks),
                proper.empty() ? "use kind \"" + join(other_kinds, "\" or \"") + "\"" : "use " + proper};
}

}  // namespace

/// cp = ring x ulysses: groups of neighbours exchange heads, rings go across.
Entry both_entry() {
  SettingKey exchange{{"exchange", OnResume::free},
                      "of mesh.cp, ranks that exchange sequence for heads; the others form rings",
                      int64_t{0},
                      whole_number({0, 1 << 20})};
  return {.family = "context_parallel",
          .name = "both",
          .summary = "rings of groups of neighbours that exchange sequence for heads",
          .paper = "Fang and Zhao, arXiv 2405.07719",
          .keys = {exchange},
          .parts =
              [](const Setting& setting, int64_t ranks) {
                return SplitParts{.heads = exchanging(setting), .stream = ranks, .pieces = 2 * ranks};
              },
          .check_model = check_both,
          .factors =
              [](const Setting& setting, int64_t ranks) {
                return std::vector<AxisSize>{{"cp_ring", static_cast<int>(ranks / exchanging(setting))},
                                             {"cp_ulysses", static_cast<int>(exchanging(setting))}};
              },
          .propose =
              [](Setting& setting, int64_t ranks) {
                const std::vector<int64_t> proper = divisors(ranks, 2, ranks - 1);
                if (!proper.empty()) setting.set("exchange", proper.front());
              },
          .shrink =
              [](Setting& setting, int64_t, const ModelConfig&) {
                setting.set("exchange", int64_t{2});
                return int64_t{4};
              }};
}

}  // namespace caravan
