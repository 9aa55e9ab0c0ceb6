#pragma once

#include <deque>
#include <exception>
#include <memory>

#include "caravan/comm/shared/task.h"

namespace caravan::shared {

/// Tasks that are done one after the other; only the first one is advanced.
class TaskQueue {
 public:
  bool empty() const noexcept { return entries_.empty(); }
  size_t size() const noexcept { return entries_.size(); }
  const Task& head() const noexcept { return *entries_.front().task; }
  /// Its operation, for those who need it longer than the task; null if it belongs to the caller who waits for it.
  std::shared_ptr<Operation> head_operation() const noexcept { return entries_.front().operation; }
  /// Grows with everything that was done: a wait during which it stands still has made no progress.
  uint64_t num_moves() const noexcept { return num_moves_; }

  void push(std::unique_ptr<Task> task, std::shared_ptr<Operation> operation) {
    Task* const borrowed = task.get();
    entries_.push_back({borrowed, std::move(task), std::move(operation)});
  }
  /// A task of a caller who does not return before it is finished or failed.
  void push(Task& task) { entries_.push_back({&task, nullptr, nullptr}); }
  /// Does what can be done; completes the operations of finished tasks. True if anything was done.
  /// Throws what a task throws; the task stays at the head.
  bool advance();
  /// Completes all operations with `error` and drops them.
  void fail(const std::exception_ptr& error) noexcept;

 private:
  struct Entry {
    Task* task;
    std::unique_ptr<Task> owned;
    std::shared_ptr<Operation> operation;
  };

  std::deque<Entry> entries_;
  uint64_t num_moves_ = 0;
};

}  // namespace caravan::shared
