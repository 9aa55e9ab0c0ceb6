#include "caravan/optim/adafactor.h"
#include "caravan/registry/setting.h"

namespace caravan {

std::unique_ptr<Optimizer> adafactor_body(const Setting& setting, FlatState& state) {
  return std::make_unique<Adafactor>(state, AdafactorOptions{.decay_exponent = setting.real("decay_exponent"),
                                                             .epsilon1 = setting.real("epsilon1"),
                                                             .clip_threshold = setting.real("clip_threshold"),
                                                             .momentum = setting.real("update_momentum"),
                                                             .weight_decay = setting.real("weight_decay"),
                                                             .scale_by_parameter = setting.flag("scale_by_parameter")});
}

}  // namespace caravan
