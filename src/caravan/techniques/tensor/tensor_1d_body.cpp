#include "caravan/techniques/technique_body.h"
#include "caravan/techniques/tensor/tensor_1d.h"

namespace caravan {

Plan tensor_1d_body(const Splitting& to, const Setting& setting) {
  return tensor_1d(to.model, to.mesh, {.axis = "tp", .sequence = setting.flag("sequence")});
}

}  // namespace caravan
