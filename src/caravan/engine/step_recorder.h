#pragma once

#include "caravan/comm/communicator.h"
#include "caravan/engine/attendance.h"
#include "caravan/schedule/schedule.h"

namespace caravan {

/// Records the events of a step without a table, in order.
class StepRecorder {
 public:
  void begin() { events_.clear(); }
  void add(const Action& event) { events_.push_back(event); }
  const Schedule& events() const noexcept { return events_; }
  /// The largest number of backward passes of any unit.
  int num_backwards() const;
  /// Ranks without a batch have recorded nothing: they take the record of the first rank with a batch. Every rank of
  /// `world` calls it.
  void share(Communicator& world, const Attendance& attendance);

 private:
  Schedule events_;
};

}  // namespace caravan
