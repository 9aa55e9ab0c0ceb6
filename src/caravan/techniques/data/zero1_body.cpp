#include "caravan/techniques/technique_body.h"

namespace caravan {

TechniqueBody zero1_body() {
  return {.apply = [](const Arranging& to, const Setting& setting) {
    const ZeroOptions options{.stage = 1,
                              .units = setting.texts("units"),
                              .prefetch = static_cast<int>(setting.whole("prefetch")),
                              .share = share_of(setting)};
    add_zero(to.strategy, to.mesh, with_dtypes(options, to.dtypes));
  }};
}

}  // namespace caravan
