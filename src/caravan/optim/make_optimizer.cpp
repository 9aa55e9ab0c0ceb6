#include "caravan/optim/make_optimizer.h"

#include <map>

#include "caravan/registry/registry.h"

namespace caravan {

#define CARAVAN_OPTIMIZER(name) std::unique_ptr<Optimizer> name##_body(const Setting& setting, FlatState& state);
#include "caravan/registry/entries.def"

std::unique_ptr<Optimizer> make_optimizer(const Setting& setting, FlatState& state) {
  using Body = std::unique_ptr<Optimizer> (*)(const Setting&, FlatState&);
  static const std::map<std::string, Body> bodies{
#define CARAVAN_OPTIMIZER(name) {#name, name##_body},
#include "caravan/registry/entries.def"
  };
  std::unique_ptr<Optimizer> optimizer = bodies.at(setting.entry().body)(setting, state);
  if (setting.reads("average") && setting.real("average") > 0) optimizer->keep_average(setting.real("average"));
  return optimizer;
}

}  // namespace caravan
