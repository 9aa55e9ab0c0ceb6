#include "caravan/comm/c10d/progress.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "caravan/comm/c10d/queue.h"

namespace caravan {

// Costs 1 % of a core, and is short compared with a training step.
constexpr std::chrono::microseconds kPollInterval{500};

/// Outlives the C10dProgress while the thread runs.
struct C10dProgress::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::weak_ptr<C10dQueue>> queues;
  std::thread thread;
  std::atomic<int> outstanding{0};
  bool watches = false;
  bool stopped = false;

  std::vector<std::shared_ptr<C10dQueue>> live_queues() {
    const std::lock_guard lock(mutex);
    std::erase_if(queues, [](const auto& queue) { return queue.expired(); });
    std::vector<std::shared_ptr<C10dQueue>> result;
    for (const auto& queue : queues) {
      if (auto held = queue.lock()) result.push_back(std::move(held));
    }
    return result;
  }

  void run() {
    std::unique_lock lock(mutex);
    while (!stopped) {
      if (outstanding.load() == 0) watches = false;
      if (!watches) {
        changed.wait(lock, [&] { return watches || stopped; });
        continue;
      }
      lock.unlock();
      for (const auto& queue : live_queues()) queue->try_sweep();
      lock.lock();
      changed.wait_for(lock, kPollInterval, [&] { return stopped; });
    }
  }
};

C10dProgress::C10dProgress() : state_(std::make_shared<State>()) {}

C10dProgress::~C10dProgress() { stop(); }

void C10dProgress::add(const std::shared_ptr<C10dQueue>& queue) {
  const std::lock_guard lock(state_->mutex);
  state_->queues.push_back(queue);
}

void C10dProgress::change_outstanding(int by) noexcept { state_->outstanding += by; }

int C10dProgress::outstanding() const noexcept { return state_->outstanding.load(); }

void C10dProgress::drive_others(const C10dQueue& own) {
  for (const auto& queue : state_->live_queues()) {
    if (queue.get() != &own) queue->try_sweep();
  }
}

void C10dProgress::watch_futures() {
  const std::lock_guard lock(state_->mutex);
  if (state_->stopped) return;
  state_->watches = true;
  if (!state_->thread.joinable()) state_->thread = std::thread([state = state_] { state->run(); });
  state_->changed.notify_all();
}

void C10dProgress::stop() noexcept {
  std::thread thread;
  {
    const std::lock_guard lock(state_->mutex);
    state_->stopped = true;
    thread = std::move(state_->thread);
    state_->changed.notify_all();
  }
  if (!thread.joinable()) return;
  // The thread itself may hold the last reference to a queue, and the queue the last one to this.
  if (thread.get_id() == std::this_thread::get_id()) return thread.detach();
  thread.join();
}

}  // namespace caravan
