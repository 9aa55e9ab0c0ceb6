#include "caravan/comm/messages/lane.h"

#include <utility>

#include "caravan/comm/broken_pipe.h"

namespace caravan::messages {

void Bell::ring() {
  const std::lock_guard lock(mutex_);
  ++count_;
  changed_.notify_all();
}

uint64_t Bell::count() {
  const std::lock_guard lock(mutex_);
  return count_;
}

void Bell::wait(uint64_t seen, std::chrono::steady_clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  changed_.wait_until(lock, deadline, [&] { return count_ != seen; });
}

Lane::Lane(Bell& bell) : bell_(bell), thread_([this] { run(); }) {}

Lane::~Lane() {
  stop();
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void Lane::push(std::shared_ptr<Job> job) {
  const std::lock_guard lock(mutex_);
  waiting_.push_back(std::move(job));
  changed_.notify_all();
}

std::vector<std::shared_ptr<Job>> Lane::take_finished() {
  const std::lock_guard lock(mutex_);
  return std::exchange(finished_, {});
}

void Lane::interrupt(std::unique_lock<std::mutex>& lock, std::chrono::milliseconds patience) {
  const std::shared_ptr<Job> job = current_;
  while (current_ != nullptr && current_ == job) {
    const uint64_t moves = num_moves_;
    const bool moved = changed_.wait_for(lock, patience, [&] { return current_ != job || num_moves_ != moves; });
    if (!moved && awaited_ != nullptr) awaited_->interrupt();
  }
}

void Lane::interrupt(std::chrono::milliseconds patience) {
  std::unique_lock lock(mutex_);
  interrupt(lock, patience);
}

std::vector<std::shared_ptr<Job>> Lane::stop() {
  std::unique_lock lock(mutex_);
  stopped_ = true;
  interrupt(lock, std::chrono::milliseconds(1));
  const auto never_begun = std::exchange(waiting_, {});
  return {never_begun.begin(), never_begun.end()};
}

std::shared_ptr<Job> Lane::head() {
  const std::lock_guard lock(mutex_);
  if (current_ != nullptr) return current_;
  return waiting_.empty() ? nullptr : waiting_.front();
}

uint64_t Lane::num_moves() {
  const std::lock_guard lock(mutex_);
  return num_moves_;
}

bool Lane::await(Transfer& transfer) {
  struct Awaited {
    Lane& lane;
    Awaited(Lane& lane_, Transfer& transfer_) : lane(lane_) {
      const std::lock_guard lock(lane.mutex_);
      lane.awaited_ = &transfer_;
    }
    ~Awaited() {
      const std::lock_guard lock(lane.mutex_);
      lane.awaited_ = nullptr;
      ++lane.num_moves_;
      lane.changed_.notify_all();
    }
  };
  const Awaited awaited(*this, transfer);
  return transfer.wait();
}

void Lane::run() {
  const NoBrokenPipeSignal no_signal;
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return ends_ || (!stopped_ && !waiting_.empty()); });
    if (ends_) return;
    current_ = std::move(waiting_.front());
    waiting_.pop_front();
    const std::shared_ptr<Job> job = current_;
    lock.unlock();
    try {
      job->run(*this);
    } catch (...) {
      job->error = std::current_exception();
    }
    lock.lock();
    if (job->error != nullptr) stopped_ = true;
    finished_.push_back(std::move(current_));
    current_ = nullptr;
    changed_.notify_all();
    bell_.ring();
  }
}

}  // namespace caravan::messages
