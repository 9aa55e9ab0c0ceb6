#include "caravan/techniques/technique_body.h"

namespace caravan {

TechniqueBody hsdp_body() {
  return {.apply = [](const Arranging& to, const Setting& setting) {
    FsdpOptions options = with_dtypes(fsdp_options(setting), to.dtypes);
    options.axis = "shard";
    options.replicate_axis = "replicate";
    options.hook = to.hook;
    add_fsdp(to.strategy, to.mesh, options);
  }};
}

}  // namespace caravan
