#include "caravan/parallel/param_server.h"
#include "caravan/techniques/technique_body.h"

namespace caravan {

TechniqueBody param_server_body() {
  return {.apply = [](const Arranging& to, const Setting& setting) {
    const ParameterServerOptions options{.servers = static_cast<int>(setting.whole("servers")),
                                         .is_synchronous = setting.text("mode") == "sync",
                                         .units = setting.texts("units"),
                                         .prefetch = static_cast<int>(setting.whole("prefetch")),
                                         .accumulate = accumulate_of(setting),
                                         .share = share_of(setting)};
    add_param_server(to.strategy, to.mesh, with_dtypes(options, to.dtypes));
  }};
}

}  // namespace caravan
