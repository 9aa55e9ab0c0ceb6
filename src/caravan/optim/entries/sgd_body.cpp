#include "caravan/optim/optimizer.h"
#include "caravan/registry/setting.h"

namespace caravan {

std::unique_ptr<Optimizer> sgd_body(const Setting& setting, FlatState& state) {
  return std::make_unique<Sgd>(
      state, SgdOptions{.momentum = setting.real("momentum"), .weight_decay = setting.real("weight_decay")});
}

}  // namespace caravan
