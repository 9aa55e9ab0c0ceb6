#include "caravan/engine/executor.h"

namespace caravan {

void execute(const Schedule& schedule, ActionHandler& handler) {
  for (const Action& action : schedule.actions) {
    switch (action.kind) {
      case Action::Kind::forward: handler.forward(action); break;
      case Action::Kind::backward: handler.backward(action); break;
      case Action::Kind::reduce: handler.reduce(action); break;
      case Action::Kind::update: handler.update(action); break;
    }
  }
}

}  // namespace caravan
