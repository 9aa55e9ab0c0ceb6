#include "caravan/session/cuts.h"

namespace caravan {

std::optional<CutParameter> first_cut(Engine& engine) {
  const std::string& stages = engine.strategy().pipeline_axis;
  for (const Parameter* parameter : engine.model().parameters()) {
    const Layout& layout = parameter->sharded_layout();
    for (const MeshAxis& axis : engine.mesh().axes()) {
      if (axis.size() == 1 || axis.name() == stages || !parameter->requires_grad()) continue;
      if (layout.has(axis.name()) && layout[axis.name()].is_shard())
        return CutParameter{parameter->name(), axis.name()};
    }
  }
  return std::nullopt;
}

}  // namespace caravan
