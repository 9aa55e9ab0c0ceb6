#include <algorithm>

#include <fmt/format.h>

#include "caravan/techniques/data/data_keys.h"

namespace caravan {
namespace {

bool is_synchronous(const Setting& setting) { return setting.text("mode") == "sync"; }

/// `key`, which is used only in the synchronous mode.
SettingKey of_sync(SettingKey key) {
  key.idle = [](const Setting& setting) {
    return is_synchronous(setting) ? "" : "is used with " + setting.full_name("mode") + " = \"sync\" only";
  };
  return key;
}

SettingKey of_modes(const std::vector<std::string>& modes, const std::string& text, SettingKey key) {
  key.idle = [modes, text](const Setting& setting) {
    const bool is_used = std::ranges::find(modes, setting.text("mode")) != modes.end();
    return is_used ? "" : "is used with " + setting.full_name("mode") + " = " + text + " only";
  };
  return key;
}

Traits traits_of_servers(const Setting& setting) {
  if (is_synchronous(setting)) return {.has = traits_of_shards()};
  Traits traits{.has = {Trait::clips_norm, Trait::ties_weights, Trait::runs_processes, Trait::many_reductions,
                        Trait::threads_may_differ},
                .because = "workers do not wait for each other with " + setting.full_name("mode") + " = \"" +
                           setting.text("mode") + "\"",
                .instead = {{"mode", "bounded"}, {"mode", "sync"}}};
  if (setting.text("mode") == "bounded") traits.has.insert(Trait::bounded_lead);
  return traits;
}

std::optional<Misfit> check_servers(const Setting& setting, int64_t ranks) {
  const int64_t servers = setting.whole("servers");
  if (servers <= ranks) return std::nullopt;
  return Misfit{.key = setting.full_name("servers"),
                .fact = fmt::format("{} servers among {} data-parallel ranks", servers, ranks),
                .action = fmt::format("use {}, or \"all\"", ranks)};
}

}  // namespace

Entry param_server_entry() {
  SettingKey servers{{"servers", OnResume::free},
                     "how many ranks, from the first, hold parameters and optimizer state; \"all\": every rank",
                     int64_t{0},
                     whole_number_or({1, 1 << 20}, "all", 0)};
  SettingKey mode{{"mode", OnResume::listed},
                  "\"sync\": workers step together; \"async\": each at its own pace; \"bounded\": within limits",
                  "sync",
                  one_of({"sync", "async", "bounded"})};
  SettingKey staleness{{"staleness", OnResume::listed},
                       "steps that a worker may be ahead of the slowest one",
                       int64_t{1},
                       whole_number({0, 1 << 20})};
  SettingKey drain{{"drain", OnResume::listed},
                   "at most this many steps of the slowest worker between log lines, for which all workers stop",
                   int64_t{50},
                   whole_number({1, 1 << 20})};
  return {.family = "data_parallel",
          .name = "param_server",
          .summary = "some ranks hold parameters and optimizer state; all ranks are their workers",
          .paper = "Li et al., \"Scaling distributed machine learning with the parameter server\", OSDI 2014",
          .keys = {bucket_bytes_key(), units_key(), of_sync(prefetch_key()), of_sync(share_key()),
                   of_sync(accumulate_key()), servers, mode, of_modes({"bounded"}, "\"bounded\"", staleness),
                   of_modes({"async", "bounded"}, "\"async\" or \"bounded\"", drain)},
          .traits = traits_of_servers,
          .check = check_servers,
          .shrink = [](Setting& setting, int64_t ranks, const ModelConfig&) {
            const int64_t few = few_ranks(ranks);
            if (setting.whole("servers") > few) setting.set("servers", few);
            return few;
          }};
}

}  // namespace caravan
