#include "caravan/registry/registry.h"

namespace caravan {

Entry recompute_full_entry() {
  return {.family = "recompute",
          .name = "full",
          .summary = "every block keeps only its input; embedding and head keep everything",
          .paper = "Chen et al., arXiv 1604.06174",
          .traits = usual_traits_of};
}

}  // namespace caravan
