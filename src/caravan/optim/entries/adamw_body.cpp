#include "caravan/optim/optimizer.h"
#include "caravan/registry/setting.h"

namespace caravan {

std::unique_ptr<Optimizer> adamw_body(const Setting& setting, FlatState& state) {
  return std::make_unique<AdamW>(state, AdamWOptions{.beta1 = setting.real("beta1"),
                                                     .beta2 = setting.real("beta2"),
                                                     .epsilon = setting.real("epsilon"),
                                                     .weight_decay = setting.real("weight_decay")});
}

}  // namespace caravan
