#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <vector>

#include "caravan/comm/backends/hierarchical/levels.h"
#include "caravan/comm/calls/descriptor.h"
#include "caravan/comm/group_info.h"

namespace caravan::hierarchical {

/// Thrown on every rank by the step that finds that the ranks' calls differ.
struct CallsDiffer {
  std::exception_ptr error;
};

/// An operation as a list of steps. Each step begins an operation of a level, or works on its own.
class HierarchicalTask {
 public:
  struct Step {
    Communicator* level;
    std::function<Work(Communicator& level)> begin;
  };

  /// `descriptor` is for its errors.
  HierarchicalTask(const Levels& levels, const GroupInfo& group, std::shared_ptr<Operation> operation,
                   const Descriptor& descriptor)
      : levels_(levels), group_(group), operation_(std::move(operation)), descriptor_(descriptor) {}
  HierarchicalTask(const HierarchicalTask&) = delete;
  HierarchicalTask& operator=(const HierarchicalTask&) = delete;

  const std::shared_ptr<Operation>& operation() const noexcept { return operation_; }
  Operation& op() noexcept { return *operation_; }
  const Descriptor& descriptor() const noexcept { return descriptor_; }
  const Levels& levels() const noexcept { return levels_; }
  const GroupInfo& group() const noexcept { return group_; }
  Call call() const { return {std::string_view(operation_->what.data()), operation_->where}; }

  void then(Communicator* level, std::function<Work(Communicator& level)> begin) {
    steps_.push_back({level, std::move(begin)});
  }
  /// Appends a step without communication.
  void then_here(std::function<void()> work);
  /// Inserts `steps` before those that are left.
  void first(std::vector<Step> steps) { steps_.insert(steps_.begin(), steps.begin(), steps.end()); }
  /// Keeps `object`, which steps refer to, alive as long as the task.
  void own(std::shared_ptr<void> object) { owned_ = std::move(object); }
  /// drain() also waits for `work`, for a step that begins two operations and returns the other one.
  void also(Work work) { others_.push_back(std::move(work)); }
  /// Memory that lives as long as the task.
  std::byte* scratch(int64_t bytes);

  /// Does what can be done now. Returns true if anything made progress. Throws CallsDiffer and the errors of levels.
  bool advance();
  bool finished() const noexcept { return finished_; }
  /// As advance(), but ignores errors, which are known already.
  void settle() noexcept;
  /// Whether an operation of a level is in flight.
  bool is_pending();
  /// Sleeps until the operation in flight completes, or for `at_most`.
  void pause(std::chrono::microseconds at_most);
  /// Waits for all operations in flight. Their communicators have ended.
  void drain() noexcept;

 private:
  const Levels& levels_;
  const GroupInfo& group_;
  std::shared_ptr<Operation> operation_;
  Descriptor descriptor_;
  std::shared_ptr<void> owned_;
  std::deque<Step> steps_;
  Work pending_;
  Communicator* level_ = nullptr;  // of pending_
  std::vector<Work> others_;
  bool finished_ = false;
  bool failed_ = false;
  std::vector<std::unique_ptr<std::byte[]>> memory_;
};

}  // namespace caravan::hierarchical
