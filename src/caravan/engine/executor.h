#pragma once

#include "caravan/engine/schedule.h"

namespace caravan {

/// What the actions of a schedule mean for one model under one technique.
class ActionHandler {
 public:
  virtual ~ActionHandler() = default;
  virtual void forward(const Action& action) = 0;
  virtual void backward(const Action& action) = 0;
  virtual void reduce(const Action& action) = 0;
  virtual void update(const Action& action) = 0;
};

/// Runs every action of `schedule` in order. What a handler throws ends the run of the schedule and reaches the caller.
void execute(const Schedule& schedule, ActionHandler& handler);

}  // namespace caravan
