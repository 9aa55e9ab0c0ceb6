#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "caravan/comm/c10d_progress.h"
#include "caravan/comm/c10d_work.h"
#include "caravan/comm/communicator.h"

namespace caravan {

/// A communicator as c10d uses one: by any thread, one call at a time. Operations advance when they are issued and
/// while a thread waits. A wait holds the communicator until it ends: two threads whose waits need each other must use
/// two process groups.
class C10dLine : public std::enable_shared_from_this<C10dLine> {
 public:
  using Start = std::function<std::vector<Work>(Communicator&)>;

  C10dLine(std::shared_ptr<Communicator> communicator, std::chrono::milliseconds timeout,
           std::shared_ptr<C10dProgress> progress);
  ~C10dLine();
  C10dLine(const C10dLine&) = delete;
  C10dLine& operator=(const C10dLine&) = delete;

  /// Runs `start`, which begins the operations of `call`. Throws what it throws.
  c10::intrusive_ptr<C10dWork> issue(C10dWork::Call call, const Start& start);
  /// Runs `use` while no other thread uses the communicator.
  void use(const std::function<void(Communicator&)>& use);

  /// Returns when `work` is settled. `timeout`: if shorter than the communicator's, throws CommError when it passes.
  void wait(C10dWork& work, std::chrono::milliseconds timeout);
  /// Settles what is complete; not if another thread is at it.
  void try_sweep();
  /// The same, for this group and the rank's others.
  void poll();
  /// Sees to it that the future of an outstanding work is completed by somebody.
  void expect_future();

  /// Ends the group: gives what is outstanding a second, then tells the peers that this rank gave up. Idempotent.
  void close() noexcept;
  /// Tells the peers, and the thread that may be waiting here, that this rank gives up.
  void abort(std::string_view reason) noexcept;

 private:
  using Lock = std::unique_lock<std::mutex>;
  using Works = std::vector<c10::intrusive_ptr<C10dWork>>;
  using Clock = std::chrono::steady_clock;

  Communicator& communicator();
  bool is_outstanding(const C10dWork& work) const;
  bool others_are_busy() const noexcept;
  bool is_done(C10dWork& work) const;
  void settle(C10dWork& work);
  void sweep(Works& settled);
  void poll_until_done(C10dWork& work, std::chrono::milliseconds limit, Lock& lock);
  void drain_futures();

  const std::chrono::milliseconds timeout_;
  const std::shared_ptr<C10dProgress> progress_;
  std::mutex mutex_;
  Works outstanding_;
  std::mutex pointer_mutex_;  ///< of communicator_ alone, which abort() reads while another thread waits
  std::shared_ptr<Communicator> communicator_;
};

}  // namespace caravan
