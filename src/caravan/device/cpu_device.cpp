#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <new>
#include <thread>
#include <utility>

#include "caravan/base/error.h"
#include "caravan/base/memory/memory_counter.h"
#include "caravan/device/device.h"

namespace caravan {
namespace {

using Clock = std::chrono::steady_clock;

class CpuStream final : public CopyStream {
 public:
  explicit CpuStream(double bytes_per_second) : bytes_per_second_(bytes_per_second), thread_([this] { serve(); }) {}
  ~CpuStream() override {
    {
      const std::lock_guard lock(mutex_);
      is_closed_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }

  void copy(void* to, const void* from, size_t bytes) override {
    const auto begin = Clock::now();
    std::memcpy(to, from, bytes);
    if (bytes_per_second_ <= 0) return;
    std::this_thread::sleep_until(begin + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(
                                              static_cast<double>(bytes) / bytes_per_second_)));
  }
  Event run(std::function<void()> job) override {
    std::packaged_task<void()> task(std::move(job));
    Event event(task.get_future().share());
    {
      const std::lock_guard lock(mutex_);
      tasks_.push_back(std::move(task));
    }
    changed_.notify_one();
    return event;
  }

 private:
  void serve() {
    while (true) {
      std::packaged_task<void()> task;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return is_closed_ || !tasks_.empty(); });
        if (tasks_.empty()) return;
        task = std::move(tasks_.front());
        tasks_.pop_front();
      }
      task();
    }
  }

  double bytes_per_second_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::packaged_task<void()>> tasks_;
  bool is_closed_ = false;
  std::thread thread_;  // last: it uses the others
};

class CpuDevice final : public Accelerator {
 public:
  explicit CpuDevice(const CpuDeviceOptions& options) : options_(options) {}

  std::shared_ptr<void> allocate(size_t bytes) override {
    const MemoryCharge charge = MemoryCharge::take(static_cast<int64_t>(bytes));
    constexpr std::align_val_t kAlignment{64};
    void* block = ::operator new(bytes, kAlignment, std::nothrow);
    if (block == nullptr) {
      charge.release();
      throw ResourceError({.op = "device", .subject = "allocate", .fact = "the system has no memory left"});
    }
    return {block, [charge](void* data) {
              ::operator delete (data, std::align_val_t{64});
              charge.release();
            }};
  }
  std::unique_ptr<CopyStream> make_stream() override {
    return std::make_unique<CpuStream>(options_.link_bytes_per_second);
  }

 private:
  CpuDeviceOptions options_;
};

}  // namespace

std::unique_ptr<Accelerator> make_cpu_device(const CpuDeviceOptions& options) {
  return std::make_unique<CpuDevice>(options);
}

}  // namespace caravan
