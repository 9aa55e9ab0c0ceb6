#include <cerrno>
#include <cstdlib>
#include <string_view>

#include "caravan/memory/disk/disk_io.h"

#ifdef CARAVAN_HAS_URING
#include <algorithm>
#include <deque>
#include <liburing.h>
#include <mutex>
#include <sys/eventfd.h>
#include <thread>
#include <unistd.h>

#include <fmt/format.h>

#include "caravan/base/system/fd.h"
#include "caravan/memory/disk/quiet_thread.h"
#endif

namespace caravan::disk {
namespace {

#ifdef CARAVAN_HAS_URING

constexpr int64_t kAlignment = 4096;  // of what is left of a short transfer

struct UringSlot {
  Transfer transfer;
  int64_t done = 0;
};

struct Ring {
  Ring() = default;
  ~Ring() {
    if (is_made) io_uring_queue_exit(&ring);
  }
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  io_uring ring{};
  bool is_made = false;
};

/// 0, or the errno that says why there is no io_uring with plain reads and writes here.
int make_ring(Ring& ring, int queue_depth) {
  const int error = io_uring_queue_init(static_cast<unsigned>(queue_depth) + 1, &ring.ring, 0);
  if (error != 0) return -error;
  ring.is_made = true;
  io_uring_probe* probe = io_uring_get_probe_ring(&ring.ring);
  const bool is_enough = probe != nullptr && io_uring_opcode_supported(probe, IORING_OP_READ) != 0 &&
                         io_uring_opcode_supported(probe, IORING_OP_WRITE) != 0;
  io_uring_free_probe(probe);
  return is_enough ? 0 : ENOSYS;
}

/// One thread owns the ring. It sleeps in the kernel until a transfer completes, or a read of the event descriptor, by
/// which other threads say that they have submitted something.
class UringEngine final : public Engine {
 public:
  UringEngine(std::unique_ptr<Ring> ring, int descriptor, int queue_depth, Fd wake, TransferOwner& owner)
      : ring_(std::move(ring)), descriptor_(descriptor), wake_(std::move(wake)), owner_(owner) {
    slots_.resize(static_cast<size_t>(queue_depth));
    for (UringSlot& slot : slots_) free_.push_back(&slot);
    thread_ = quiet_thread([this] { run(); });
  }

  ~UringEngine() override {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
    }
    wake();
    thread_.join();
  }

  void submit(const std::vector<Transfer>& transfers) override {
    {
      const std::lock_guard lock(mutex_);
      queue_.insert(queue_.end(), transfers.begin(), transfers.end());
    }
    wake();
  }

 private:
  void wake() const {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof one);
  }

  void run() {
    listen();
    while (true) {
      const bool ends = start_transfers();
      if (ends && free_.size() == slots_.size()) return;
      const int entered = io_uring_submit_and_wait(&ring_->ring, 1);
      if (entered < 0 && entered != -EINTR && entered != -EAGAIN && entered != -EBUSY) return fail_all(-entered);
      io_uring_cqe* completion = nullptr;
      while (io_uring_peek_cqe(&ring_->ring, &completion) == 0) {
        auto* slot = static_cast<UringSlot*>(io_uring_cqe_get_data(completion));
        const int result = completion->res;
        io_uring_cqe_seen(&ring_->ring, completion);
        if (slot == nullptr) {
          listen();
        } else {
          advance(*slot, result);
        }
      }
    }
  }

  void listen() {
    io_uring_sqe* entry = io_uring_get_sqe(&ring_->ring);
    io_uring_prep_read(entry, wake_.get(), &woken_, sizeof woken_, 0);
    io_uring_sqe_set_data(entry, nullptr);
  }

  /// Hands the kernel what waits, as far as there is room. Returns whether nothing waits and nothing will.
  bool start_transfers() {
    while (true) {
      std::unique_lock lock(mutex_);
      if (queue_.empty()) return ends_;
      if (free_.empty()) return false;
      UringSlot& slot = *free_.back();
      free_.pop_back();
      slot = {.transfer = queue_.front()};
      queue_.pop_front();
      lock.unlock();
      owner_.begin(slot.transfer);
      start(slot);
      io_uring_submit(&ring_->ring);  // the disk works while the next page is hashed
    }
  }

  void start(UringSlot& slot) {
    const Transfer& transfer = slot.transfer;
    io_uring_sqe* entry = io_uring_get_sqe(&ring_->ring);  // there is one for each slot
    std::byte* memory = transfer.memory + slot.done;
    const auto bytes = static_cast<unsigned>(transfer.bytes - slot.done);
    const auto offset = static_cast<uint64_t>(transfer.offset + slot.done);
    if (transfer.is_write) {
      io_uring_prep_write(entry, descriptor_, memory, bytes, offset);
    } else {
      io_uring_prep_read(entry, descriptor_, memory, bytes, offset);
    }
    io_uring_sqe_set_data(entry, &slot);
  }

  void advance(UringSlot& slot, int result) {
    if (result == -EINTR || result == -EAGAIN) return start(slot);
    if (result < 0) return finish(slot, -result);
    slot.done += result;
    if (slot.done == slot.transfer.bytes) return finish(slot, 0);
    const int64_t whole = slot.done / kAlignment * kAlignment;
    if (result == 0 || whole == slot.done - result) return finish(slot, slot.transfer.is_write ? EIO : kEndOfFile);
    slot.done = whole;
    start(slot);
  }

  void finish(UringSlot& slot, int error) {
    const Transfer transfer = slot.transfer;
    slot.transfer = {};
    free_.push_back(&slot);
    owner_.end(transfer, error);
  }

  /// The ring itself is broken: everything that is left fails, now and later.
  void fail_all(int error) {
    for (UringSlot& slot : slots_) {
      if (slot.transfer.request != nullptr) finish(slot, error);
    }
    while (true) {
      std::unique_lock lock(mutex_);
      if (queue_.empty() && ends_) return;
      if (queue_.empty()) {
        lock.unlock();
        [[maybe_unused]] const ssize_t got = ::read(wake_.get(), &woken_, sizeof woken_);
        continue;
      }
      const Transfer transfer = queue_.front();
      queue_.pop_front();
      lock.unlock();
      owner_.end(transfer, error);
    }
  }

  std::unique_ptr<Ring> ring_;
  int descriptor_;
  Fd wake_;
  TransferOwner& owner_;
  uint64_t woken_ = 0;
  std::vector<UringSlot> slots_;
  std::vector<UringSlot*> free_;
  std::mutex mutex_;
  std::deque<Transfer> queue_;
  bool ends_ = false;
  std::thread thread_;
};

#endif

bool is_switched_off() {
  const char* value = std::getenv("CARAVAN_IO_URING");
  return value != nullptr && std::string_view(value) == "0";
}

}  // namespace

std::unique_ptr<Engine> make_uring_engine([[maybe_unused]] int descriptor, [[maybe_unused]] int queue_depth,
                                          [[maybe_unused]] TransferOwner& owner,
                                          [[maybe_unused]] std::string& refusal) {
  if (is_switched_off()) return nullptr;
#ifdef CARAVAN_HAS_URING
  const int depth = std::clamp(queue_depth, 1, 1024);
  auto ring = std::make_unique<Ring>();
  int error = make_ring(*ring, depth);
  Fd wake(error == 0 ? ::eventfd(0, EFD_CLOEXEC) : -1);
  if (error == 0 && !wake) error = errno;
  if (error == 0) return std::make_unique<UringEngine>(std::move(ring), descriptor, depth, std::move(wake), owner);
  refusal = fmt::format("io_uring is refused here: {}", system_error(error));
#else
  refusal = "this build has no io_uring (liburing-dev)";
#endif
  return nullptr;
}

}  // namespace caravan::disk
