#include "caravan/parallel/ddp.h"

#include "caravan/base/error.h"

namespace caravan {

void add_ddp(Strategy& strategy, const Mesh& mesh, const DdpOptions& options) {
  for (const auto& [name, layouts] : strategy.layouts) {
    if (mesh[options.axis].size() == 1 || layouts.rest[options.axis].is_invariant()) continue;
    throw LayoutError({"ddp", name, "does not rest invariant on axis " + options.axis,
                       mesh.where() + ", layout " + layouts.rest.to_string(),
                       "leave axis " + options.axis + " out of its layout"});
  }
  add_data_axis(strategy, mesh, options.axis);
  strategy.name = "ddp";
  strategy.bucket_bytes = options.bucket_bytes;
  strategy.leaf_dtype = options.compute_dtype;
  strategy.allow_unused = options.allow_unused;
}

Strategy ddp(Module& model, const Mesh& mesh, const DdpOptions& options) {
  Strategy strategy = whole_model(model, mesh);
  add_ddp(strategy, mesh, options);
  return strategy;
}

}  // namespace caravan
