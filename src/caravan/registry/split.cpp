#include "caravan/registry/split.h"

#include "caravan/registry/registry.h"

namespace caravan {

SplitParts Split::parts() const { return is_used() ? kind.entry().parts(kind, degree) : SplitParts{}; }

std::optional<Misfit> Split::misfit(const ModelConfig& model, const SplitParts& others) const {
  return kind.entry().check_model(kind, degree, model, others);
}

}  // namespace caravan
