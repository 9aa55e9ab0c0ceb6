#include "caravan/techniques/server/async_stepper.h"
#include "caravan/techniques/server/param_server.h"
#include "caravan/techniques/technique_body.h"

namespace caravan {
namespace {

bool is_synchronous(const Setting& setting) { return setting.text("mode") == "sync"; }

void apply_servers(const Arranging& to, const Setting& setting) {
  const ParameterServerOptions options{.servers = static_cast<int>(setting.whole("servers")),
                                       .is_synchronous = is_synchronous(setting),
                                       .units = setting.texts("units"),
                                       .prefetch = static_cast<int>(setting.whole("prefetch")),
                                       .accumulate = accumulate_of(setting),
                                       .share = share_of(setting)};
  add_param_server(to.strategy, to.mesh, with_dtypes(options, to.dtypes));
}

/// A single worker waits for nobody.
std::unique_ptr<Stepper> make_server_stepper(StepperInputs inputs, const Setting& setting,
                                             std::chrono::milliseconds timeout) {
  if (is_synchronous(setting) || inputs.engine.mesh().size() == 1) return nullptr;
  inputs.steps_at_once = setting.whole("drain");
  const bool is_bounded = setting.text("mode") == "bounded";
  return make_async_stepper(inputs,
                            {.staleness = is_bounded ? setting.whole("staleness") : kUnbounded, .timeout = timeout});
}

}  // namespace

TechniqueBody param_server_body() {
  return {.apply = apply_servers, .make_stepper = make_server_stepper, .most_in_flight = most_bytes_in_flight};
}

}  // namespace caravan
