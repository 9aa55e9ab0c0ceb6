#include "caravan/techniques/data/ddp.h"
#include "caravan/techniques/technique_body.h"

namespace caravan {

TechniqueBody ddp_body() {
  return {.apply = [](const Arranging& to, const Setting&) {
    add_ddp(to.strategy, to.mesh, with_dtypes(DdpOptions{.hook = to.hook}, to.dtypes));
  }};
}

}  // namespace caravan
