#include "caravan/techniques/recompute/recompute.h"
#include "caravan/techniques/technique_body.h"

namespace caravan {

void recompute_selective_body(Strategy& strategy, Module& model, const Setting&) {
  add_recompute(
      strategy, model,
      {.modules = {"*attention.core"}, .hint = "name the modules that are to be recomputed, or use \"full\""});
}

}  // namespace caravan
