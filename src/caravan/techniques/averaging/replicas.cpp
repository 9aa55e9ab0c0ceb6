#include "caravan/techniques/averaging/replicas.h"

#include "caravan/base/error.h"

namespace caravan {

void add_replicas(Strategy& strategy, const Mesh& mesh, const ReplicasOptions& options) {
  const std::string_view backend = mesh.world().backend();
  if (backend != "thread" && backend != "record") {
    throw UsageError({"replicas", "comm.backend",
                      "replicas are threads of one process, but the back-end is " + std::string(backend), mesh.where(),
                      "use comm.backend = \"thread\", or data_parallel.technique = \"ddp\" over processes"});
  }
  add_param_server(strategy, mesh,
                   {.axis = options.axis,
                    .servers = 1,
                    .units = options.units,
                    .prefetch = options.prefetch,
                    .accumulate = options.accumulate,
                    .share = Share::off,
                    .compute_dtype = options.compute_dtype,
                    .gradient_dtype = options.gradient_dtype,
                    .reduce_dtype = options.reduce_dtype,
                    .find_unused_parameters = options.find_unused_parameters,
                    .buffers = options.buffers});
  strategy.name = "replicas";
  strategy.controller_axis = options.axis;
}

Strategy replicas(Module& model, const Mesh& mesh, const ReplicasOptions& options) {
  Strategy strategy = whole_model(model, mesh);
  add_replicas(strategy, mesh, options);
  return strategy;
}

}  // namespace caravan
