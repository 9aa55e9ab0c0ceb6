#include "caravan/techniques/data/ddp.h"

#include "caravan/techniques/data/sharded.h"

namespace caravan {

void add_ddp(Strategy& strategy, const Mesh& mesh, const DdpOptions& options) {
  check_invariant(strategy, mesh, options.axis, "ddp");
  add_data_axis(strategy, mesh, options.axis);
  for (auto& [name, layouts] : strategy.layouts) layouts.sharded = layouts.sharded.moved(options.axis, Invariant{});
  strategy.name = "ddp";
  strategy.bucket_bytes = options.bucket_bytes;
  strategy.first_bucket_bytes = options.first_bucket_bytes;
  set_common(strategy, options);
  strategy.hook = options.hook;
  strategy.hook_axis = options.axis;
  strategy.static_graph = options.static_graph;
}

Strategy ddp(Module& model, const Mesh& mesh, const DdpOptions& options) {
  Strategy strategy = whole_model(model, mesh);
  add_ddp(strategy, mesh, options);
  return strategy;
}

}  // namespace caravan
