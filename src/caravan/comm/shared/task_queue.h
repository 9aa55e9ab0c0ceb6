#pragma once

#include <deque>
#include <exception>
#include <memory>

#include "caravan/comm/shared/task.h"

namespace caravan::shared {

/// Tasks that are done one after the other; only the first one is advanced.
class TaskQueue {
 public:
  bool empty() const noexcept { return tasks_.empty(); }
  size_t size() const noexcept { return tasks_.size(); }
  const Task& head() const noexcept { return *tasks_.front(); }
  /// Grows with everything that was done: a wait during which it stands still has made no progress.
  uint64_t num_moves() const noexcept { return num_moves_; }

  void push(std::unique_ptr<Task> task) { tasks_.push_back(std::move(task)); }
  /// Does what can be done; completes the operations of finished tasks. True if anything was done.
  /// Throws what a task throws; the task stays at the head.
  bool advance();
  /// Completes all operations with `error` and drops them.
  void fail(const std::exception_ptr& error) noexcept;

 private:
  std::deque<std::unique_ptr<Task>> tasks_;
  uint64_t num_moves_ = 0;
};

}  // namespace caravan::shared
