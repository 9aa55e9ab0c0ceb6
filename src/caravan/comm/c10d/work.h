#pragma once

#include <functional>
#include <memory>
#include <vector>

#include <torch/csrc/distributed/c10d/Work.hpp>

#include "caravan/comm/work.h"

namespace caravan {

class C10dQueue;

/// A method of the back-end. The texts are literals: the profiler keeps pointers to them.
struct C10dMethod {
  c10d::OpType type = c10d::OpType::UNKNOWN;
  const char* name = "";      ///< in errors, as c10d names it
  const char* profiled = "";  ///< in PyTorch's profiler, as gloo names its own
};

/// One call of a c10d back-end: the operations it became, and what is left to do when they are complete.
class C10dWork final : public c10d::Work {
 public:
  struct Call {
    C10dMethod method;
    std::vector<at::Tensor> inputs;        ///< whose shapes the profiler shows
    std::vector<at::Tensor> outputs;       ///< of result() and of the future
    std::chrono::milliseconds timeout{0};  ///< of wait() without one; 0: the communicator's
    std::function<void()> finish;          ///< after the operations: divides, copies to where the caller wants it
  };

  C10dWork(std::shared_ptr<C10dQueue> queue, int rank, uint64_t sequence, Call call);

  bool isCompleted() override;
  /// Throws the operation's error. Throws CommError if `timeout` passes; the operation continues.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  std::vector<at::Tensor> result() override;
  /// Completed by wait() of any work of this rank, at the end of a backward in which it was requested, or by a thread.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  /// For a recv: the sender of the message, -1 until it is known.
  int sourceRank() const override;
  uint64_t getSequencenumber() const override { return sequence_; }

  const char* name() const noexcept { return call_.method.name; }

 private:
  friend class C10dQueue;
  friend class C10dMessages;

  std::shared_ptr<C10dQueue> queue();
  bool expects_future();
  /// Starts with `parts`; if `parts` is empty and there is an error, it failed before it could start.
  void begin(std::vector<caravan::Work> parts, std::exception_ptr error = nullptr);
  /// Whether there is nothing left to wait for. Makes progress.
  bool is_done();
  /// Ends the work. The caller holds the queue's lock.
  void settle();
  /// Completes the future, if one was requested. Call it without any lock: it runs callbacks.
  void mark_future();

  const uint64_t sequence_;
  // Guarded by the queue's lock:
  bool has_begun_ = false;  ///< false: a recv whose message has not come
  std::vector<caravan::Work> parts_;
  std::exception_ptr begin_error_;
  Call call_;
  // Guarded by mutex_:
  std::shared_ptr<C10dQueue> queue_;  ///< until it is settled
  c10::intrusive_ptr<c10::ivalue::Future> future_;
  bool future_is_marked_ = false;
  int source_ = -1;
};

}  // namespace caravan
