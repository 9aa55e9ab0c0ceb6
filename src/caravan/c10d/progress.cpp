#include "caravan/comm/c10d_progress.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "caravan/comm/c10d_line.h"

namespace caravan {

// Rare enough to cost the thread that computes nothing (1 % of a core), often enough to be short beside a step.
constexpr std::chrono::microseconds kLook{500};

/// Outlives the C10dProgress while its thread runs.
struct C10dProgress::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::weak_ptr<C10dLine>> lines;
  std::thread thread;
  std::atomic<int> outstanding{0};
  bool watches = false;
  bool stopped = false;

  std::vector<std::shared_ptr<C10dLine>> living() {
    const std::lock_guard lock(mutex);
    std::erase_if(lines, [](const auto& line) { return line.expired(); });
    std::vector<std::shared_ptr<C10dLine>> result;
    for (const auto& line : lines) {
      if (auto held = line.lock()) result.push_back(std::move(held));
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
      for (const auto& line : living()) line->try_sweep();
      lock.lock();
      changed.wait_for(lock, kLook, [&] { return stopped; });
    }
  }
};

C10dProgress::C10dProgress() : state_(std::make_shared<State>()) {}

C10dProgress::~C10dProgress() { stop(); }

void C10dProgress::add(const std::shared_ptr<C10dLine>& line) {
  const std::lock_guard lock(state_->mutex);
  state_->lines.push_back(line);
}

void C10dProgress::change_outstanding(int by) noexcept { state_->outstanding += by; }

int C10dProgress::outstanding() const noexcept { return state_->outstanding.load(); }

void C10dProgress::drive_others(const C10dLine& own) {
  for (const auto& line : state_->living()) {
    if (line.get() != &own) line->try_sweep();
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
  // The last holder of a line may be the thread itself, and the line the last holder of this.
  if (thread.get_id() == std::this_thread::get_id()) return thread.detach();
  thread.join();
}

}  // namespace caravan
