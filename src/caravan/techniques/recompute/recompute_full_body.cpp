#include "caravan/techniques/recompute/recompute.h"
#include "caravan/techniques/technique_body.h"

namespace caravan {

void recompute_full_body(Strategy& strategy, Module& model, const Setting&) { add_recompute(strategy, model); }

}  // namespace caravan
