#include "caravan/techniques/data/data_keys.h"

namespace caravan {

Entry zero1_entry() {
  return {.family = "data_parallel",
          .name = "zero1",
          .summary = "optimizer state is sharded",
          .paper = "Rajbhandari et al., arXiv 1910.02054",
          .keys = {bucket_bytes_key(), units_key(), prefetch_key(), share_key()},
          .traits = [](const Setting&) { return Traits{.has = traits_of_shards()}; }};
}

}  // namespace caravan
