#include "caravan/registry/registry.h"

namespace caravan {

Entry no_hook_entry() {
  return {.family = "hook",
          .name = "none",
          .summary = "gradients are summed unchanged",
          .traits = usual_traits_of,
          .is_none = true,
          .mistaken = {{"bf16", "'bf16' is a dtype; use precision.reduce = \"bf16\""},
                       {"bfloat16", "'bfloat16' is a dtype; use precision.reduce = \"bf16\""},
                       {"fp16", "'fp16' is a dtype; use precision.reduce = \"fp16\""}}};
}

}  // namespace caravan
