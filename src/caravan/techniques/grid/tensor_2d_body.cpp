#include "caravan/techniques/grid/tensor_2d.h"
#include "caravan/techniques/technique_body.h"

namespace caravan {

Plan tensor_2d_body(const Splitting& to, const Setting&) { return tensor_2d(to.model, to.mesh["row"], to.mesh["col"]); }

}  // namespace caravan
