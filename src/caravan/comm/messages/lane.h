#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "caravan/comm/descriptor.h"
#include "caravan/comm/messages/transport.h"
#include "caravan/comm/work.h"

namespace caravan::messages {

/// What the rank's own thread sleeps on: rung when a lane has finished a job.
class Bell {
 public:
  void ring();
  uint64_t count();
  /// Returns when the bell was rung after `seen`, at the latest at `deadline`.
  void wait(uint64_t seen, std::chrono::steady_clock::time_point deadline);

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t count_ = 0;
};

class Lane;

/// An operation to be executed. `error` is set by the lane before it hands the job back.
class Job {
 public:
  explicit Job(std::shared_ptr<Operation> operation) : operation_(std::move(operation)), call_(describe(*operation_)) {}
  virtual ~Job() = default;
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  /// Blocks until done; on the lane's thread.
  virtual void run(Lane& lane) = 0;

  const std::shared_ptr<Operation>& operation() const noexcept { return operation_; }
  const Descriptor& call() const noexcept { return call_; }
  std::exception_ptr error;

 protected:
  std::shared_ptr<Operation> operation_;
  Descriptor call_;  ///< a copy: the operation may belong to the caller's thread again
};

/// A thread that executes jobs one after the other. A transport's waits block, and only this way do operations that
/// take several rounds go on while the rank computes or waits for another one. After a job that failed no other is
/// begun.
class Lane {
 public:
  explicit Lane(Bell& bell);
  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  void push(std::shared_ptr<Job> job);
  /// The jobs that have ended since the last call, in order.
  std::vector<std::shared_ptr<Job>> take_finished();
  /// Interrupts every wait of the job being executed that lasts longer than `patience`, until that job has ended.
  void interrupt(std::chrono::milliseconds patience);
  /// Interrupts and begins no other job; returns those that were never begun.
  std::vector<std::shared_ptr<Job>> stop();
  /// The job being executed or the next one; null if there is none.
  std::shared_ptr<Job> head();
  /// Grows with every transfer that was completed.
  uint64_t num_moves();

  /// On the lane's thread: waits for `transfer`; false if interrupted.
  bool await(Transfer& transfer);

 private:
  void run();
  void interrupt(std::unique_lock<std::mutex>& lock, std::chrono::milliseconds patience);

  Bell& bell_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Job>> waiting_;
  std::shared_ptr<Job> current_;
  std::vector<std::shared_ptr<Job>> finished_;
  Transfer* awaited_ = nullptr;
  uint64_t num_moves_ = 0;
  bool stopped_ = false;
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace caravan::messages
