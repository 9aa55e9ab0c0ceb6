#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "caravan/comm/algorithms/problem.h"
#include "caravan/comm/algorithms/schedule.h"
#include "caravan/comm/algorithms/working_buffer.h"
#include "caravan/comm/work.h"

namespace caravan::algorithms {

/// What carries the messages of a run. Between two ranks they arrive in the order in which they were sent.
class Port {
 public:
  Port() = default;
  virtual ~Port() = default;
  Port(const Port&) = delete;
  Port& operator=(const Port&) = delete;

  /// Start a message without waiting for it. The buffers live until `finish` has returned, or what carries the
  /// messages has ended them.
  virtual void send(int peer, ConstBuffer data) = 0;
  virtual void recv(int peer, Buffer place) = 0;
  /// Waits for all messages started; throws if one fails.
  virtual void finish() = 0;
  /// Whether `finish` would return at once. Makes progress.
  virtual bool is_done() = 0;
};

/// The executor: takes one rank through its schedule. The buffers of `operation` must live as long.
class Run {
 public:
  /// `operation` is checked (check_operation). With touches_memory == false messages are sent, and nothing is read,
  /// added or written.
  Run(Schedule schedule, const Operation& operation, int rank, int size, bool touches_memory);
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  /// Goes on to the end, waiting.
  void finish(Port& port);
  /// Goes on as far as it can without waiting; true at the end.
  bool advance(Port& port);

 private:
  /// Starts the messages of the next step, if none is under way; at the end, false, and the result is there.
  bool begin_step(Port& port);
  void end_step();
  void post(Port& port, const Step& step);
  void copy_own(const Step& step);
  void add_received(const Step& step);
  void deliver();
  WorkingBuffer& working() noexcept { return next_ < schedule_.num_partial_steps && wide_ ? *wide_ : *narrow_; }

  Schedule schedule_;
  Buffer out_;
  ReduceOp op_;
  int rank_;
  bool touches_memory_;
  Range result_;
  std::optional<WorkingBuffer> wide_;      ///< fp32, where unfinished sums of 16-bit floats travel
  std::optional<WorkingBuffer> narrow_;    ///< the caller's dtype
  std::unique_ptr<std::byte[]> received_;  ///< what is to be added, in the order of the step's adding moves
  int64_t received_bytes_ = 0;
  size_t next_ = 0;
  bool is_under_way_ = false;
  bool is_delivered_ = false;
};

}  // namespace caravan::algorithms
