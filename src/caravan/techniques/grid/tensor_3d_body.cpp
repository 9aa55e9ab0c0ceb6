#include "caravan/techniques/grid/tensor_3d.h"
#include "caravan/techniques/technique_body.h"

namespace caravan {

Plan tensor_3d_body(const Splitting& to, const Setting&) {
  return tensor_3d(to.model, to.mesh["a"], to.mesh["b"], to.mesh["c"]);
}

}  // namespace caravan
