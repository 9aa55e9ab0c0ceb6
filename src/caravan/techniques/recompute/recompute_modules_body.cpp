#include "caravan/techniques/recompute/recompute.h"
#include "caravan/techniques/technique_body.h"

namespace caravan {

void recompute_modules_body(Strategy& strategy, Module& model, const Setting& setting) {
  add_recompute(strategy, model, {.modules = setting.texts("modules")});
}

}  // namespace caravan
