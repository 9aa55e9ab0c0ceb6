#include "caravan/optim/muon.h"
#include "caravan/registry/setting.h"

namespace caravan {

std::unique_ptr<Optimizer> muon_body(const Setting& setting, FlatState& state) {
  return std::make_unique<Muon>(state, MuonOptions{.momentum = setting.real("matrix_momentum"),
                                                   .newton_schulz_steps = setting.whole("newton_schulz_steps"),
                                                   .adamw = {.beta1 = setting.real("beta1"),
                                                             .beta2 = setting.real("beta2"),
                                                             .epsilon = setting.real("epsilon"),
                                                             .weight_decay = setting.real("weight_decay")}});
}

}  // namespace caravan
