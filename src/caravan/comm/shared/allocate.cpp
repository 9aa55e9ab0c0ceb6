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
  if (state_.rank != 0) return;
  try {
    memory_ = state_.arena->allocate_shared(bytes(), state_.size, line.out);
  } catch (const ResourceError&) {  // offset 0 tells the others
  }
}

Rounds::Next AllocateTask::read(uint64_t round, int64_t) {
  const uint64_t offset = state_.region.line(0, round).out;
  if (offset == 0) state_.arena->throw_no_room(bytes());
  if (state_.rank != 0) memory_ = state_.arena->adopt(offset, bytes(), state_.size);
  return Next::end;
}

}  // namespace caravan::shared
