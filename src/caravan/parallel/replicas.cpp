#include "caravan/parallel/replicas.h"

#include "caravan/base/error.h"
#include "caravan/redistribute/redistribute.h"

namespace caravan {
namespace {

/// All rows on the controller.
Layout on_controller(const std::string& axis, int64_t rows) {
  return Layout({{axis, Shard{.dim = 0, .owner = 0, .rows = rows}}});
}

Layout over_replicas(const std::string& axis) { return Layout({{axis, Shard{0}}}); }

at::Tensor move_rows(const at::Tensor& rows, const Layout& from, const Layout& to, const Mesh& mesh) {
  return redistribute(rows, from.completed(mesh, Invariant{}), to.completed(mesh, Invariant{}), mesh, "batch");
}

}  // namespace

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
                    .allow_unused = options.allow_unused,
                    .buffers = options.buffers});
  strategy.name = "replicas";
  strategy.first_rank_has_batch = true;
}

Strategy replicas(Module& model, const Mesh& mesh, const ReplicasOptions& options) {
  Strategy strategy = whole_model(model, mesh);
  add_replicas(strategy, mesh, options);
  return strategy;
}

at::Tensor scatter_rows(const at::Tensor& batch, int64_t rows, const Mesh& mesh, const std::string& axis) {
  return move_rows(batch, on_controller(axis, rows), over_replicas(axis), mesh);
}

at::Tensor gather_rows(const at::Tensor& part, int64_t rows, const Mesh& mesh, const std::string& axis) {
  return move_rows(part, over_replicas(axis), on_controller(axis, rows), mesh);
}

}  // namespace caravan
