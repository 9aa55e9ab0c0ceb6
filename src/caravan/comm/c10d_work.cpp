#include "caravan/comm/c10d_work.h"

#include "caravan/comm/c10d_line.h"

namespace caravan {

C10dWork::C10dWork(std::shared_ptr<C10dLine> line, int rank, Call call)
    : c10d::Work(rank, call.type, call.title), call_(std::move(call)), line_(std::move(line)) {}

std::shared_ptr<C10dLine> C10dWork::line() {
  const std::lock_guard lock(mutex_);
  return line_;
}

bool C10dWork::isCompleted() {
  if (const auto line = this->line()) line->poll();
  const std::lock_guard lock(mutex_);
  return completed_;
}

bool C10dWork::wait(std::chrono::milliseconds timeout) {
  if (const auto line = this->line()) line->wait(*this, timeout == kNoTimeout ? call_.timeout : timeout);
  const std::lock_guard lock(mutex_);
  if (exception_ != nullptr) std::rethrow_exception(exception_);
  return true;
}

std::vector<at::Tensor> C10dWork::result() { return call_.outputs; }

c10::intrusive_ptr<c10::ivalue::Future> C10dWork::getFuture() {
  std::shared_ptr<C10dLine> line;
  {
    const std::lock_guard lock(mutex_);
    if (future_ == nullptr) {
      future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
      line = line_;
    }
  }
  if (line != nullptr) line->expect_future();
  mark_future();
  const std::lock_guard lock(mutex_);
  return future_;
}

bool C10dWork::expects_future() {
  const std::lock_guard lock(mutex_);
  return future_ != nullptr;
}

void C10dWork::settle(std::exception_ptr error) {
  parts_.clear();
  call_.finish = nullptr;
  finish(std::move(error));
  const std::lock_guard lock(mutex_);
  line_.reset();
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
