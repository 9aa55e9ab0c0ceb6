#include "caravan/techniques/compression/hook_keys.h"

namespace caravan {

Entry topk_entry() {
  return {.family = "hook",
          .name = "topk",
          .summary = "only the largest gradients are sent",
          .paper = "Lin et al., \"Deep gradient compression\", arXiv 1712.01887",
          .keys = {{{"hook_fraction", OnResume::listed},
                    "topk: the fraction of gradients that is sent",
                    0.01,
                    real_number({1e-6, 1})}},
          .traits = [](const Setting&) { return traits_of_residuals("topk", "fp32 entries"); }};
}

}  // namespace caravan
