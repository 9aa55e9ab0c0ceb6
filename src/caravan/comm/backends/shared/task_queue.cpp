#include "caravan/comm/backends/shared/task_queue.h"

#include <utility>

namespace caravan::shared {

bool TaskQueue::advance() {
  bool moved = false;
  while (!entries_.empty() && entries_.front().task->advance()) {
    moved = true;
    ++num_moves_;
    if (!entries_.front().task->finished()) break;
    const Entry done = std::move(entries_.front());
    entries_.pop_front();
    done.task->operation().set_complete();
  }
  return moved;
}

void TaskQueue::fail(const std::exception_ptr& error) noexcept {
  for (const Entry& entry : std::exchange(entries_, {})) entry.task->operation().set_complete(error);
}

}  // namespace caravan::shared
