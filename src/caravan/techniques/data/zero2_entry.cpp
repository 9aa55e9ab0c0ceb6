#include "caravan/techniques/data/data_keys.h"

namespace caravan {

Entry zero2_entry() {
  return {.family = "data_parallel",
          .name = "zero2",
          .summary = "gradients and optimizer state are sharded",
          .paper = "Rajbhandari et al., arXiv 1910.02054",
          .keys = {bucket_bytes_key(), units_key(), prefetch_key(), share_key(), accumulate_key()},
          .traits = [](const Setting&) { return Traits{.has = traits_of_shards()}; }};
}

}  // namespace caravan
