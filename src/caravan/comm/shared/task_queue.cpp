#include "caravan/comm/shared/task_queue.h"

#include <utility>

namespace caravan::shared {

bool TaskQueue::advance() {
  bool moved = false;
  while (!tasks_.empty() && tasks_.front()->advance()) {
    moved = true;
    ++num_moves_;
    if (!tasks_.front()->finished()) break;
    const std::unique_ptr<Task> done = std::move(tasks_.front());
    tasks_.pop_front();
    done->operation().set_complete();
  }
  return moved;
}

void TaskQueue::fail(const std::exception_ptr& error) noexcept {
  for (const auto& task : std::exchange(tasks_, {})) task->operation().set_complete(error);
}

}  // namespace caravan::shared
