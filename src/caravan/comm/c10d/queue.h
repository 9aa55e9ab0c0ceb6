#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "caravan/comm/c10d/messages.h"
#include "caravan/comm/c10d/progress.h"
#include "caravan/comm/c10d/work.h"
#include "caravan/comm/communicator.h"

namespace caravan {

/// The works of one communicator that are not complete. Any thread may call it, one at a time for all communicators of
/// one world, which advance each other's operations. Operations advance when they are issued and while a thread waits.
/// A wait may hold the world exclusively until it ends: two threads whose waits depend on each other need process
/// groups of two worlds, as Python's are.
class C10dQueue : public std::enable_shared_from_this<C10dQueue> {
 public:
  using Start = std::function<std::vector<Work>(Communicator&)>;

  C10dQueue(std::shared_ptr<Communicator> communicator, std::chrono::milliseconds timeout,
            std::shared_ptr<C10dProgress> progress);
  ~C10dQueue();
  C10dQueue(const C10dQueue&) = delete;
  C10dQueue& operator=(const C10dQueue&) = delete;

  /// Runs `start`, which begins the operations of `call`. Throws what it throws.
  c10::intrusive_ptr<C10dWork> issue(C10dWork::Call call, const Start& start);
  /// Point-to-point; see C10dMessages.
  c10::intrusive_ptr<C10dWork> send(C10dWork::Call call, const at::Tensor& tensor, int to, int tag);
  c10::intrusive_ptr<C10dWork> receive(C10dWork::Call call, const at::Tensor& tensor, int from, int tag);
  std::chrono::milliseconds timeout() const noexcept { return timeout_; }
  uint64_t num_issued() const noexcept { return num_issued_; }
  /// Runs `use` with exclusive access to the communicator.
  void use(const std::function<void(Communicator&)>& use);

  /// Returns when `work` is settled. Throws CommError after `timeout` if that is shorter than the communicator's.
  void wait(C10dWork& work, std::chrono::milliseconds timeout);
  /// Settles what is complete. A no-op while another thread uses the world.
  void try_sweep();
  /// The same, for all groups of the rank.
  void poll();
  /// Ensures that the future of an outstanding work will be completed.
  void expect_future();

  /// Shuts down: waits up to a second for what is outstanding, then aborts. Idempotent.
  void close() noexcept;
  /// Makes waits fail on the peers and, over shared memory, on other threads of this rank.
  void abort(std::string_view reason) noexcept;

 private:
  using Lock = std::unique_lock<std::mutex>;
  using Works = std::vector<c10::intrusive_ptr<C10dWork>>;
  using Clock = std::chrono::steady_clock;

  Communicator& communicator();
  bool is_outstanding(const C10dWork& work) const;
  bool others_are_busy() const noexcept;
  c10::intrusive_ptr<C10dWork> make_work(C10dWork::Call call);
  void add(const c10::intrusive_ptr<C10dWork>& work);
  void settle(C10dWork& work);
  void sweep(Works& settled);
  void poll_until_done(C10dWork& work, std::chrono::milliseconds limit, Lock& lock);
  void fail_late(C10dWork& work);
  void drain_futures();

  const std::chrono::milliseconds timeout_;
  const std::shared_ptr<C10dProgress> progress_;
  const std::shared_ptr<std::mutex> mutex_;  ///< of the world
  std::atomic<uint64_t> num_issued_{0};
  Works outstanding_;
  std::mutex pointer_mutex_;  ///< guards communicator_, which abort() reads while another thread waits
  std::shared_ptr<Communicator> communicator_;
  std::unique_ptr<C10dMessages> messages_;
};

}  // namespace caravan
