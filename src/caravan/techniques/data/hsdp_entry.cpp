#include <algorithm>

#include <fmt/format.h>

#include "caravan/base/divisors.h"
#include "caravan/base/text.h"
#include "caravan/techniques/data/data_keys.h"

namespace caravan {
namespace {

std::optional<Misfit> check_hsdp(const Setting& setting, int64_t ranks) {
  const int64_t shard = setting.whole("shard");
  if (shard > 1 && shard < ranks && ranks % shard == 0) return std::nullopt;
  const std::vector<int64_t> valid = divisors(ranks, 2, ranks - 1);
  return Misfit{.key = setting.full_name("shard"),
                .fact = shard == 0
                            ? fmt::format("is needed by hsdp: how many of {} ranks share one set of shards", ranks)
                            : fmt::format("hsdp cuts shards over groups of {} of {} data-parallel ranks", shard, ranks),
                .action = valid.empty() ? "no group smaller than all of them divides them: use \"zero3\""
                                        : "use one of " + join(valid)};
}

int64_t shrink_hsdp(Setting& setting, int64_t ranks, const ModelConfig&) {
  const int64_t replicas = few_ranks(ranks / setting.whole("shard"));
  const int64_t shard = few_ranks(setting.whole("shard"));
  setting.set("shard", shard);
  return replicas * shard;
}

}  // namespace

Entry hsdp_entry() {
  SettingKey shard{{"shard", OnResume::free},
                   "ranks that share one set of shards; a divisor of dp",
                   int64_t{0},
                   whole_number({0, 1 << 20})};
  return {
      .family = "data_parallel",
      .name = "hsdp",
      .summary = "zero3 inside groups of ranks, replicas of it between them",
      .paper = "Zhao et al., \"PyTorch FSDP\", VLDB 2023",
      .keys = {bucket_bytes_key(), units_key(), prefetch_key(), share_key(), accumulate_key(), reshard_key(), shard},
      .traits =
          [](const Setting&) {
            Traits traits{.has = traits_of_shards()};
            traits.has.insert(Trait::all_reduces);
            return traits;
          },
      .check = check_hsdp,
      .factors =
          [](const Setting& setting, int64_t ranks) {
            const int64_t shard = std::max<int64_t>(setting.whole("shard"), 1);
            return std::vector<AxisSize>{{"replicate", static_cast<int>(ranks / shard)},
                                         {"shard", static_cast<int>(shard)}};
          },
      .least_ranks = [](const Setting& setting) { return std::max<int64_t>(2 * setting.whole("shard"), 2); },
      .propose =
          [](Setting& setting, int64_t ranks) {
            const std::vector<int64_t> valid = divisors(ranks, 2, ranks - 1);
            if (!valid.empty()) setting.set("shard", valid.front());
          },
      .shrink = shrink_hsdp};
}

}  // namespace caravan
