#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "caravan/comm/backends/messages/transport.h"
#include "caravan/comm/calls/descriptor.h"
#include "caravan/comm/work.h"

namespace caravan::messages {

/// What the rank's main thread sleeps on: signalled whenever a task has ended.
class CompletionEvent {
 public:
  void signal();
  uint64_t count();
  /// Returns once the count differs from `seen`, at the latest at `deadline`.
  void wait(uint64_t seen, std::chrono::steady_clock::time_point deadline);

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t count_ = 0;
};

class TaskThread;

/// An operation to be executed. The thread sets `error` before it hands the task back.
class MessageTask {
 public:
  explicit MessageTask(std::shared_ptr<Operation> operation)
      : operation_(std::move(operation)), call_(describe(*operation_)) {}
  virtual ~MessageTask() = default;
  MessageTask(const MessageTask&) = delete;
  MessageTask& operator=(const MessageTask&) = delete;

  /// Blocks until done. Called on `thread`.
  virtual void run(TaskThread& thread) = 0;

  const std::shared_ptr<Operation>& operation() const noexcept { return operation_; }
  const Descriptor& call() const noexcept { return call_; }
  std::exception_ptr error;

 protected:
  std::shared_ptr<Operation> operation_;
  Descriptor call_;  ///< a copy: the operation may already be back with the caller's thread
};

/// A thread that executes tasks one after the other. The waits of a transport block, so an operation of several rounds
/// needs a thread to make progress while the rank computes or waits for another one. After a failed task no other is
/// begun.
class TaskThread {
 public:
  explicit TaskThread(CompletionEvent& completions);
  ~TaskThread();
  TaskThread(const TaskThread&) = delete;
  TaskThread& operator=(const TaskThread&) = delete;

  void push(std::shared_ptr<MessageTask> task);
  /// The tasks that have ended since the last call, in order.
  std::vector<std::shared_ptr<MessageTask>> take_finished();
  /// Interrupts every wait of the current task that lasts longer than `patience`, until the task has ended.
  void interrupt(std::chrono::milliseconds patience);
  /// Interrupts the current task and begins no other; returns those that were never begun.
  std::vector<std::shared_ptr<MessageTask>> stop();
  /// The current task or the next one; null if there is none.
  std::shared_ptr<MessageTask> head();
  /// The number of tasks that have not ended.
  size_t size();
  /// Grows with every transfer that completes.
  uint64_t num_moves();

  /// Called on the thread: waits for `transfer`. Returns false if interrupted.
  bool await(Transfer& transfer);

 private:
  void run();
  void interrupt(std::unique_lock<std::mutex>& lock, std::chrono::milliseconds patience);

  CompletionEvent& completions_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<MessageTask>> pending_;
  std::shared_ptr<MessageTask> current_;
  std::vector<std::shared_ptr<MessageTask>> finished_;
  Transfer* awaited_ = nullptr;
  uint64_t num_moves_ = 0;
  bool stopped_ = false;
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace caravan::messages
