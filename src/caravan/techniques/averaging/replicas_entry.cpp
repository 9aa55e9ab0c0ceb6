#include "caravan/techniques/data/data_keys.h"

namespace caravan {

Entry replicas_entry() {
  return {.family = "data_parallel",
          .name = "replicas",
          .summary = "threads of one process; the first one has the batch and the optimizer state",
          .paper = "Krizhevsky, arXiv 1404.5997",
          .keys = {bucket_bytes_key(), units_key(), prefetch_key(), accumulate_key()},
          .traits = [](const Setting&) {
            Traits traits{.has = traits_of_shards(), .because = "replicas runs whole models as threads of one process"};
            for (const Trait lacking : {Trait::splits_layers, Trait::splits_stages, Trait::runs_processes}) {
              traits.has.erase(lacking);
            }
            return traits;
          }};
}

}  // namespace caravan
