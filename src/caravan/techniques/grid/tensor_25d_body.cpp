#include "caravan/techniques/grid/tensor_25d.h"
#include "caravan/techniques/technique_body.h"

namespace caravan {

Plan tensor_25d_body(const Splitting& to, const Setting&) {
  return tensor_25d(to.model, to.mesh["depth"], to.mesh["row"], to.mesh["col"]);
}

}  // namespace caravan
