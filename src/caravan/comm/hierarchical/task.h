#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <vector>

#include "caravan/comm/descriptor.h"
#include "caravan/comm/group_seat.h"
#include "caravan/comm/hierarchical/levels.h"

namespace caravan::hierarchical {

/// Thrown by the step that finds that the ranks' calls differ; the same on every rank.
struct CallsDiffer {
  std::exception_ptr error;
};

/// An operation as steps, each of which begins one operation of a level or none.
class Task {
 public:
  struct Step {
    Communicator* level;
    std::function<Work(Communicator& level)> begin;
  };

  /// `descriptor` is what errors say of it.
  Task(const Levels& levels, const GroupSeat& seat, std::shared_ptr<Operation> operation, const Descriptor& descriptor)
      : levels_(levels), seat_(seat), operation_(std::move(operation)), descriptor_(descriptor) {}
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;

  const std::shared_ptr<Operation>& operation() const noexcept { return operation_; }
  Operation& op() noexcept { return *operation_; }
  const Descriptor& descriptor() const noexcept { return descriptor_; }
  const Levels& levels() const noexcept { return levels_; }
  const GroupSeat& seat() const noexcept { return seat_; }
  Call call() const { return {std::string_view(operation_->what.data()), operation_->where}; }

  void then(Communicator* level, std::function<Work(Communicator& level)> begin) {
    steps_.push_back({level, std::move(begin)});
  }
  /// Work without a message, once all before is done.
  void then_here(std::function<void()> work);
  /// `steps` come before those that are still to do.
  void first(std::vector<Step> steps) { steps_.insert(steps_.begin(), steps.begin(), steps.end()); }
  /// Kept as long as the task: what steps refer to.
  void own(std::shared_ptr<void> object) { owned_ = std::move(object); }
  /// Waited for by drain(), too: begun by a step that returns another one.
  void also(Work work) { others_.push_back(std::move(work)); }
  /// Memory until the task ends.
  std::byte* scratch(int64_t bytes);

  /// Does what can be done now. True if anything was done. Throws CallsDiffer, and what a level throws.
  bool advance();
  bool finished() const noexcept { return finished_; }
  /// As advance(); an error is told already.
  void settle() noexcept;
  /// Begun, with an operation of a level that is not complete.
  bool is_pending();
  /// Sleeps until what was begun is complete, or `at_most`.
  void pause(std::chrono::microseconds at_most);
  /// Waits for what was begun, whose communicators have ended.
  void drain() noexcept;

 private:
  const Levels& levels_;
  const GroupSeat& seat_;
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
