#include "caravan/optim/lion.h"
#include "caravan/registry/setting.h"

namespace caravan {

std::unique_ptr<Optimizer> lion_body(const Setting& setting, FlatState& state) {
  return std::make_unique<Lion>(state, LionOptions{.beta1 = setting.real("beta1"),
                                                   .beta2 = setting.real("beta2"),
                                                   .weight_decay = setting.real("weight_decay")});
}

}  // namespace caravan
