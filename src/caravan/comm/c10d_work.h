#pragma once

#include <functional>
#include <memory>
#include <vector>

#include <torch/csrc/distributed/c10d/Work.hpp>

#include "caravan/comm/work.h"

namespace caravan {

class C10dLine;

/// One call of a c10d back-end: the operations it became, and what is left to do when they are complete.
class C10dWork final : public c10d::Work {
 public:
  struct Call {
    c10d::OpType type = c10d::OpType::UNKNOWN;
    const char* title = nullptr;           ///< a literal: for the profiler and messages
    std::vector<at::Tensor> outputs;       ///< of result() and of the future
    std::chrono::milliseconds timeout{0};  ///< of wait() without one; 0: the communicator's
    std::function<void()> finish;          ///< after the operations: divides, copies to where the caller wants it
  };

  C10dWork(std::shared_ptr<C10dLine> line, int rank, Call call);

  bool isCompleted() override;
  /// Throws the operation's error; CommError if `timeout` passes, and then the operation goes on.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  std::vector<at::Tensor> result() override;
  /// Completed by wait() of any work of this rank, at the end of a backward it was asked for in, or by a thread.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

  const char* title() const noexcept { return call_.title; }

 private:
  friend class C10dLine;

  std::shared_ptr<C10dLine> line();
  bool expects_future();
  /// Ends the work; with the line's lock held.
  void settle(std::exception_ptr error);
  /// Completes the future, if one was asked for. Without any lock: it runs its callbacks.
  void mark_future();

  std::vector<caravan::Work> parts_;  ///< guarded by the line's lock
  Call call_;
  std::shared_ptr<C10dLine> line_;  ///< until it is settled; this and what follows: guarded by mutex_
  c10::intrusive_ptr<c10::ivalue::Future> future_;
  bool future_is_marked_ = false;
};

}  // namespace caravan
