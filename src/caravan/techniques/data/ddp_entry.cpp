#include "caravan/techniques/data/data_keys.h"

namespace caravan {

Entry ddp_entry() {
  return {.family = "data_parallel",
          .name = "ddp",
          .summary = "every rank holds the whole model; gradients are all-reduced",
          .paper = "Li et al., \"PyTorch distributed\", VLDB 2020",
          .keys = {bucket_bytes_key()},
          .traits = usual_traits_of};
}

}  // namespace caravan
