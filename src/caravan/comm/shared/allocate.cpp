#include "caravan/comm/shared/allocate.h"

#include <algorithm>

#include "caravan/base/error.h"

namespace caravan::shared {

Operation AllocateTask::make_operation(size_t bytes) {
  Operation operation;
  operation.in.count = static_cast<int64_t>(bytes);
  return operation;
}

Descriptor AllocateTask::call() const {
  Descriptor descriptor = describe(operation());
  descriptor.verb = kAllocateCall;
  return descriptor;
}

void AllocateTask::write(uint64_t round, int64_t) {
  Line& line = own_line(round);
  line.call = kAllocateCall;
  line.size = bytes();
  line.out = 0;
  if (seat_.rank != 0) return;
  try {
    memory_ = seat_.arena->allocate_shared(bytes(), seat_.size, line.out);
  } catch (const ResourceError&) {  // the others see that there is none
  }
}

Rounds::Next AllocateTask::read(uint64_t round, int64_t) {
  const uint64_t place = seat_.region.line(0, round).out;
  if (place == 0) seat_.arena->throw_no_room(bytes());
  if (seat_.rank != 0) memory_ = seat_.arena->adopt(place, bytes(), seat_.size);
  return Next::end;
}

}  // namespace caravan::shared
