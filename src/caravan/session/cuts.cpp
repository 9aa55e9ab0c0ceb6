#include "caravan/session/cuts.h"

namespace caravan {

std::optional<CutParameter> cut_of(Engine& engine, const Parameter& parameter) {
  const Layout& layout = parameter.sharded_layout();
  for (const MeshAxis& axis : engine.mesh().axes()) {
    if (axis.size() == 1 || axis.name() == engine.strategy().pipeline_axis) continue;
    if (layout.has(axis.name()) && layout[axis.name()].is_shard()) return CutParameter{parameter.name(), axis.name()};
  }
  return std::nullopt;
}

std::optional<CutParameter> first_cut(Engine& engine) {
  for (const Parameter* parameter : engine.model().parameters()) {
    if (!parameter->requires_grad()) continue;
    if (auto cut = cut_of(engine, *parameter)) return cut;
  }
  return std::nullopt;
}

}  // namespace caravan
