#include "caravan/registry/registry.h"

namespace caravan {

Entry recompute_selective_entry() {
  return {.family = "recompute",
          .name = "selective",
          .summary = "the cores of attention keep only their inputs",
          .paper = "Korthikanti et al., arXiv 2205.05198",
          .traits = usual_traits_of,
          .note = [](const Setting&, const ModelConfig&) -> std::string {
            return "memory.recompute = \"selective\" saves almost nothing: the fused attention keeps no weights";
          }};
}

}  // namespace caravan
