#include "caravan/comm/backends/shared/memory/allocate.h"

#include <fmt/format.h>

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

void AllocateTask::write(uint64_t, int64_t) {
  own_.call = kAllocateCall;
  own_.size = bytes();
  if (state_.rank != 0) return;
  try {
    memory_ = state_.arena->allocate_shared(bytes(), state_.size, own_.out);
  } catch (const ResourceError&) {
    error_ = std::current_exception();  // offset 0 tells the others
  }
}

Rounds::Next AllocateTask::read(uint64_t round, int64_t) {
  const uint64_t offset = data_of(0, round).out;
  if (offset == 0) {
    if (error_ != nullptr) std::rethrow_exception(error_);
    throw ResourceError({.op = "allocate_shared",
                         .fact = fmt::format("rank 0 of the communicator could not allocate {} bytes", bytes()),
                         .where = state_.text(),
                         .action = "see the error of that rank"});
  }
  if (state_.rank != 0) memory_ = state_.arena->adopt(offset, bytes(), state_.size);
  return Next::end;
}

}  // namespace caravan::shared
