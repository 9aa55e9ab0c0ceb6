#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <deque>
#include <fcntl.h>
#include <mutex>
#include <thread>
#include <unistd.h>

#include "caravan/memory/disk/disk_io.h"
#include "caravan/memory/disk/quiet_thread.h"

namespace caravan::disk {
namespace {

constexpr int64_t kSectorOfRest = 4096;

class ThreadEngine final : public Engine {
 public:
  ThreadEngine(int descriptor, bool is_direct, int num_threads, TransferOwner& owner)
      : descriptor_(descriptor), is_direct_(is_direct), owner_(owner) {
    for (int i = 0; i < std::max(1, num_threads); ++i) threads_.push_back(quiet_thread([this] { run(); }));
  }

  ~ThreadEngine() override {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  void submit(const std::vector<Transfer>& transfers) override {
    {
      const std::lock_guard lock(mutex_);
      queue_.insert(queue_.end(), transfers.begin(), transfers.end());
    }
    wake_.notify_all();
  }

 private:
  void run() {
    while (true) {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return ends_ || !queue_.empty(); });
      if (queue_.empty()) return;
      const Transfer transfer = queue_.front();
      queue_.pop_front();
      lock.unlock();
      owner_.begin(transfer);
      owner_.end(transfer, carry_out(transfer));
    }
  }

  int carry_out(const Transfer& transfer) const {
    for (int64_t done = 0; done < transfer.bytes;) {
      std::byte* memory = transfer.memory + done;
      const auto bytes = static_cast<size_t>(transfer.bytes - done);
      const int64_t offset = transfer.offset + done;
      const ssize_t moved = transfer.is_write ? ::pwrite(descriptor_, memory, bytes, offset)
                                              : ::pread(descriptor_, memory, bytes, offset);
      if (moved < 0 && errno == EINTR) continue;
      if (moved < 0) return errno;
      const int64_t next = (done + moved) / kSectorOfRest * kSectorOfRest;  // direct I/O cannot go on in between
      if (next == done) return transfer.is_write ? EIO : kEndOfFile;
      done = next;
    }
    return is_direct_ ? 0 : leave_cache(transfer);
  }

  int leave_cache(const Transfer& transfer) const {
    constexpr unsigned kWriteNow = SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
    if (transfer.is_write && ::sync_file_range(descriptor_, transfer.offset, transfer.bytes, kWriteNow) != 0 &&
        (errno == EIO || errno == ENOSPC)) {
      return errno;  // another errno: a file system without it
    }
    ::posix_fadvise(descriptor_, transfer.offset, transfer.bytes, POSIX_FADV_DONTNEED);
    return 0;
  }

  int descriptor_;
  bool is_direct_;
  TransferOwner& owner_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Transfer> queue_;
  bool ends_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<Engine> make_thread_engine(int descriptor, bool is_direct, int num_threads, TransferOwner& owner) {
  return std::make_unique<ThreadEngine>(descriptor, is_direct, num_threads, owner);
}

}  // namespace caravan::disk
