#pragma once

#include "caravan/comm/communicator.h"
#include "caravan/engine/attendance.h"
#include "caravan/schedule/schedule.h"

namespace caravan {

/// The events of a step without a table, in the order in which they come.
class StepRecorder {
 public:
  void begin() { events_.clear(); }
  void add(const Action& event) { events_.push_back(event); }
  const Schedule& events() const noexcept { return events_; }
  /// The most backward passes of a unit.
  int num_backwards() const;
  /// Ranks without a batch have recorded nothing: they take over what the first rank with one has. Every rank of
  /// `world` calls it.
  void share(Communicator& world, const Attendance& attendance);

 private:
  Schedule events_;
};

}  // namespace caravan
