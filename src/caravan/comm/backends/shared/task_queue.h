#pragma once

#include <algorithm>
#include <deque>
#include <exception>
#include <memory>

#include "caravan/comm/backends/shared/shared_task.h"

namespace caravan::shared {

/// A FIFO of tasks; only the first one is advanced.
class TaskQueue {
 public:
  bool empty() const noexcept { return entries_.empty(); }
  size_t size() const noexcept { return entries_.size(); }
  const SharedTask& head() const noexcept { return *entries_.front().task; }
  /// The operation of the first task; null if its caller owns it.
  std::shared_ptr<Operation> head_operation() const noexcept { return entries_.front().operation; }
  /// Whether an operation has a property.
  template <class Has>
  bool any_of(const Has& has) const {
    return std::ranges::any_of(entries_, [&](const Entry& entry) { return has(entry.task->operation()); });
  }
  /// Counts progress: a wait during which it does not change has made none.
  uint64_t num_moves() const noexcept { return num_moves_; }

  void push(std::unique_ptr<SharedTask> task, std::shared_ptr<Operation> operation) {
    SharedTask* const borrowed = task.get();
    entries_.push_back({borrowed, std::move(task), std::move(operation)});
  }
  /// For a task whose caller waits until it has finished or failed.
  void push(SharedTask& task) { entries_.push_back({&task, nullptr, nullptr}); }
  /// Advances tasks and completes the operations of finished ones. True if there was progress. Throws what a task
  /// throws, which stays at the head.
  bool advance();
  /// Completes all operations with `error` and drops them.
  void fail(const std::exception_ptr& error) noexcept;

 private:
  struct Entry {
    SharedTask* task;
    std::unique_ptr<SharedTask> owned;
    std::shared_ptr<Operation> operation;
  };

  std::deque<Entry> entries_;
  uint64_t num_moves_ = 0;
};

}  // namespace caravan::shared
