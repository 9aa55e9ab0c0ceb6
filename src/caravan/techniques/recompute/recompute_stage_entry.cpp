#include "caravan/registry/registry.h"

namespace caravan {

Entry recompute_stage_entry() {
  return {.family = "recompute",
          .name = "stage",
          .summary = "every stage of a pipeline keeps only its inputs; its second forward is a pass of the schedule",
          .paper = "Huang et al., arXiv 1811.06965",
          .traits = usual_traits_of,
          .check = [](const Setting& setting, int64_t stages) -> std::optional<Misfit> {
            if (stages > 1) return std::nullopt;
            return Misfit{setting.full_name(), "\"stage\" is used with mesh.pp above 1 only", "use \"full\""};
          },
          .repeats_stages = true};
}

}  // namespace caravan
