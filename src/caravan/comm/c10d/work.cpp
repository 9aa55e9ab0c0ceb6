#include "caravan/comm/c10d/work.h"

#include <algorithm>
#include <utility>

#include <ATen/core/LegacyTypeDispatch.h>

#include "caravan/comm/c10d/queue.h"

namespace caravan {

C10dWork::C10dWork(std::shared_ptr<C10dQueue> queue, int rank, uint64_t sequence, Call call)
    : c10d::Work(rank, call.method.type, call.method.profiled, call.inputs),
      sequence_(sequence),
      call_(std::move(call)),
      queue_(std::move(queue)) {}

std::shared_ptr<C10dQueue> C10dWork::queue() {
  const std::lock_guard lock(mutex_);
  return queue_;
}

bool C10dWork::isCompleted() {
  if (const auto queue = this->queue()) queue->poll();
  const std::lock_guard lock(mutex_);
  return completed_;
}

bool C10dWork::wait(std::chrono::milliseconds timeout) {
  if (const auto queue = this->queue()) queue->wait(*this, timeout == kNoTimeout ? call_.timeout : timeout);
  const std::lock_guard lock(mutex_);
  if (exception_ != nullptr) std::rethrow_exception(exception_);
  return true;
}

std::vector<at::Tensor> C10dWork::result() { return call_.outputs; }

int C10dWork::sourceRank() const {
  if (call_.method.type != c10d::OpType::RECV && call_.method.type != c10d::OpType::RECVANYSOURCE) {
    return c10d::Work::sourceRank();  // throws
  }
  const std::lock_guard lock(mutex_);
  return source_;
}

c10::intrusive_ptr<c10::ivalue::Future> C10dWork::getFuture() {
  std::shared_ptr<C10dQueue> queue;
  {
    const std::lock_guard lock(mutex_);
    if (future_ == nullptr) {
      future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
      queue = queue_;
    }
  }
  if (queue != nullptr) queue->expect_future();
  mark_future();
  const std::lock_guard lock(mutex_);
  return future_;
}

bool C10dWork::expects_future() {
  const std::lock_guard lock(mutex_);
  return future_ != nullptr;
}

void C10dWork::begin(std::vector<caravan::Work> parts, std::exception_ptr error) {
  parts_ = std::move(parts);
  begin_error_ = std::move(error);
  has_begun_ = true;
}

bool C10dWork::is_done() { return has_begun_ && std::ranges::all_of(parts_, &caravan::Work::done); }

void C10dWork::settle() {
  std::exception_ptr error = std::move(begin_error_);
  for (caravan::Work& part : parts_) {
    try {
      part.wait();
    } catch (...) {
      if (error == nullptr) error = std::current_exception();
    }
  }
  try {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;  // the outputs may be autograd leaves
    if (error == nullptr && call_.finish) call_.finish();
  } catch (...) {
    error = std::current_exception();
  }
  parts_.clear();
  call_.finish = nullptr;
  call_.inputs.clear();
  finish(std::move(error));
  const std::lock_guard lock(mutex_);
  queue_.reset();
}

void C10dWork::mark_future() {
  c10::intrusive_ptr<c10::ivalue::Future> future;
  {
    const std::lock_guard lock(mutex_);
    if (future_ == nullptr || future_is_marked_ || !completed_) return;
    future_is_marked_ = true;
    future = future_;
  }
  if (exception_ != nullptr) {
    future->setError(exception_);
  } else {
    future->markCompleted(c10::IValue(call_.outputs));
  }
}

}  // namespace caravan
