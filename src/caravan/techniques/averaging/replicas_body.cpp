#include "caravan/techniques/averaging/replicas.h"
#include "caravan/techniques/technique_body.h"

namespace caravan {

TechniqueBody replicas_body() {
  return {.apply = [](const Arranging& to, const Setting& setting) {
    const ReplicasOptions options{.prefetch = static_cast<int>(setting.whole("prefetch")),
                                  .accumulate = accumulate_of(setting),
                                  .units = setting.texts("units")};
    add_replicas(to.strategy, to.mesh, with_dtypes(options, to.dtypes));
  }};
}

}  // namespace caravan
