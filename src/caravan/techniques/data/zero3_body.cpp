#include "caravan/techniques/technique_body.h"

namespace caravan {

TechniqueBody zero3_body() {
  return {.apply = [](const Arranging& to, const Setting& setting) {
    add_fsdp(to.strategy, to.mesh, with_dtypes(fsdp_options(setting), to.dtypes));
  }};
}

}  // namespace caravan
