#include "caravan/techniques/compression/hook_keys.h"

namespace caravan {

Entry powersgd_entry() {
  return {.family = "hook",
          .name = "powersgd",
          .summary = "matrices of gradients are sent as two factors of few columns",
          .paper = "Vogels et al., arXiv 1905.13727",
          .keys = {{{"hook_rank", OnResume::listed},
                    "powersgd: columns of the factors of a matrix",
                    int64_t{4},
                    whole_number({1, 1 << 16})}},
          .traits = [](const Setting&) {
            Traits traits = traits_of_residuals("powersgd", "fp32 factors");
            traits.has.erase(Trait::threads_may_differ);
            return traits;
          }};
}

}  // namespace caravan
