#include "caravan/registry/registry.h"

namespace caravan {

Entry recompute_full_entry() {
  return {.family = "recompute",
          .name = "full",
          .summary = "every block keeps its input alone, but neither embedding nor head",
          .paper = "Chen et al., arXiv 1604.06174",
          .traits = usual_traits_of};
}

}  // namespace caravan
