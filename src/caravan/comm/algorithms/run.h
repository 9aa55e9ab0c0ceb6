#pragma once

#include <cstddef>
#include <memory>
#include <optional>

#include "caravan/comm/algorithms/message_plan.h"
#include "caravan/comm/algorithms/problem.h"
#include "caravan/comm/algorithms/working_buffer.h"
#include "caravan/comm/work.h"

namespace caravan::algorithms {

/// Sends and receives the messages of a run. Between two ranks they arrive in the order in which they were sent.
class Port {
 public:
  Port() = default;
  virtual ~Port() = default;
  Port(const Port&) = delete;
  Port& operator=(const Port&) = delete;

  /// Start a message without waiting for it. The buffers must live until `finish` has returned, or the transport has
  /// ended the messages.
  virtual void send(int peer, ConstBuffer data) = 0;
  virtual void recv(int peer, Buffer place) = 0;
  /// Waits for all messages that were started. Throws if one fails.
  virtual void finish() = 0;
  /// Makes progress. Returns true if `finish` would return at once.
  virtual bool is_done() = 0;
};

/// The executor of one rank's plan. The buffers of `operation` must outlive it.
class Run {
 public:
  /// `operation` has passed check_operation. If touches_memory is false, messages are sent, but no memory is read or
  /// written.
  Run(MessagePlan plan, const Operation& operation, int rank, int size, bool touches_memory);
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  /// Runs to the end, and waits for messages.
  void finish(Port& port);
  /// Runs as far as possible without waiting. Returns true at the end.
  bool advance(Port& port);

 private:
  /// Starts the messages of the next step if no step is in flight. Returns false at the end, when the result is in
  /// place.
  bool begin_step(Port& port);
  void end_step();
  void post(Port& port, const Step& step);
  void copy_own(const Step& step);
  void add_received(const Step& step);
  void deliver();
  WorkingBuffer& working() noexcept { return next_ < plan_.num_partial_steps && wide_ ? *wide_ : *narrow_; }

  MessagePlan plan_;
  Buffer out_;
  ReduceOp op_;
  int rank_;
  bool touches_memory_;
  Range result_;
  std::optional<WorkingBuffer> wide_;      ///< fp32, for the steps that send partial sums of 16-bit floats
  std::optional<WorkingBuffer> narrow_;    ///< the caller's dtype
  std::unique_ptr<std::byte[]> received_;  ///< inputs of sums, in the order of the step's adding moves
  int64_t received_bytes_ = 0;
  size_t next_ = 0;
  bool is_in_flight_ = false;
  bool is_delivered_ = false;
};

}  // namespace caravan::algorithms
