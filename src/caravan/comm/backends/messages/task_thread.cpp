#include "caravan/comm/backends/messages/task_thread.h"

#include <utility>

#include "caravan/base/system/broken_pipe.h"

namespace caravan::messages {

void CompletionEvent::signal() {
  const std::lock_guard lock(mutex_);
  ++count_;
  changed_.notify_all();
}

uint64_t CompletionEvent::count() {
  const std::lock_guard lock(mutex_);
  return count_;
}

void CompletionEvent::wait(uint64_t seen, std::chrono::steady_clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, deadline, [&] { return count_ != seen; });
}

TaskThread::TaskThread(CompletionEvent& completions) : completions_(completions), thread_([this] { run(); }) {}

TaskThread::~TaskThread() {
  stop();
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void TaskThread::push(std::shared_ptr<MessageTask> task) {
  const std::lock_guard lock(mutex_);
  pending_.push_back(std::move(task));
  changed_.notify_all();
}

std::vector<std::shared_ptr<MessageTask>> TaskThread::take_finished() {
  const std::lock_guard lock(mutex_);
  return std::exchange(finished_, {});
}

void TaskThread::interrupt(std::unique_lock<std::mutex>& lock, std::chrono::milliseconds patience) {
  const std::shared_ptr<MessageTask> task = current_;
  while (current_ != nullptr && current_ == task) {
    const uint64_t moves = num_moves_;
    const bool moved = changed_.wait_for(lock, patience, [&] { return current_ != task || num_moves_ != moves; });
    if (!moved && awaited_ != nullptr) awaited_->interrupt();
  }
}

void TaskThread::interrupt(std::chrono::milliseconds patience) {
  std::unique_lock lock(mutex_);
  interrupt(lock, patience);
}

std::vector<std::shared_ptr<MessageTask>> TaskThread::stop() {
  std::unique_lock lock(mutex_);
  stopped_ = true;
  interrupt(lock, std::chrono::milliseconds(1));
  const auto never_begun = std::exchange(pending_, {});
  return {never_begun.begin(), never_begun.end()};
}

std::shared_ptr<MessageTask> TaskThread::head() {
  const std::lock_guard lock(mutex_);
  if (current_ != nullptr) return current_;
  return pending_.empty() ? nullptr : pending_.front();
}

size_t TaskThread::size() {
  const std::lock_guard lock(mutex_);
  return pending_.size() + (current_ != nullptr ? 1 : 0);
}

uint64_t TaskThread::num_moves() {
  const std::lock_guard lock(mutex_);
  return num_moves_;
}

bool TaskThread::await(Transfer& transfer) {
  struct Awaited {
    TaskThread& thread;
    Awaited(TaskThread& thread_, Transfer& transfer_) : thread(thread_) {
      const std::lock_guard lock(thread.mutex_);
      thread.awaited_ = &transfer_;
    }
    ~Awaited() {
      const std::lock_guard lock(thread.mutex_);
      thread.awaited_ = nullptr;
      ++thread.num_moves_;
      thread.changed_.notify_all();
    }
  };
  const Awaited awaited(*this, transfer);
  return transfer.wait();
}

void TaskThread::run() {
  const NoBrokenPipeSignal no_signal;
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return ends_ || (!stopped_ && !pending_.empty()); });
    if (ends_) return;
    current_ = std::move(pending_.front());
    pending_.pop_front();
    const std::shared_ptr<MessageTask> task = current_;
    lock.unlock();
    try {
      task->run(*this);
    } catch (...) {
      task->error = std::current_exception();
    }
    lock.lock();
    if (task->error != nullptr) stopped_ = true;
    finished_.push_back(std::move(current_));
    current_ = nullptr;
    changed_.notify_all();
    completions_.signal();
  }
}

}  // namespace caravan::messages
