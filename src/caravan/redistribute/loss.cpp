#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/mesh/fit.h"
#include "caravan/redistribute/redistribute.h"

namespace caravan {

void backward(const at::Tensor& loss, const Layout& layout) {
  const std::string where = "layout " + layout.to_string();
  if (loss.numel() != 1) {
    const std::string shape = shape_text(loss.sizes().data(), loss.sizes().size());
    throw ShapeError({"backward", "loss " + shape, fmt::format("has {} elements", loss.numel()), where,
                      "sum it to one; a mean is a sum divided by the global count"});
  }
  for (const auto& [axis, placement] : layout.entries()) {
    if (placement.is_invariant() || placement.is_partial()) continue;
    throw LayoutError({"backward", "loss",
                       fmt::format("is {} on axis {}: with 1 on every rank it would count once per rank",
                                   placement.to_string(), axis),
                       where,
                       placement.is_shard()
                           ? "sum it over the shards: P"
                           : fmt::format("reduce to I instead of R, or redistribute {} R -> I", axis)});
  }
  if (!loss.requires_grad()) {
    throw UsageError({"backward", "loss", "requires no gradient", where,
                      "compute it from parameters that require one, outside of no_grad"});
  }
  loss.backward();
}

}  // namespace caravan
