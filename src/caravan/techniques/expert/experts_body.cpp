#include "caravan/techniques/expert/expert_parallel.h"
#include "caravan/techniques/technique_body.h"

namespace caravan {

Plan experts_body(const Splitting& to, const Setting&) { return expert_parallel(to.model, to.mesh, "ep"); }

}  // namespace caravan
