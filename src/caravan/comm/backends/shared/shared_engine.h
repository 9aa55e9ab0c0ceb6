#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "caravan/comm/backends/shared/memory/arena.h"
#include "caravan/comm/backends/shared/memory/segment.h"
#include "caravan/comm/backends/shared/peers/peer_watch.h"
#include "caravan/comm/backends/shared/task_queue.h"
#include "caravan/comm/backends/wait_policy.h"
#include "caravan/comm/level.h"
#include "caravan/comm/options.h"

namespace caravan::shared {

class SharedCommunicator;

/// Progresses everything that one rank has in flight on all communicators split from one world. A wait for one
/// operation advances all of them, so ranks may wait for operations in different orders.
class SharedEngine {
 public:
  /// `watch` is null for ranks that are threads. `world_ranks`: the numbers of the ranks in error messages, if the
  /// segment is part of a larger world; empty: their numbers in the segment. `num_cores`: distinct cores that the ranks
  /// may run on; 0: those of this thread.
  SharedEngine(std::shared_ptr<Segment> segment, int world_rank, std::string_view backend, const CommOptions& options,
               std::unique_ptr<PeerWatch> watch, std::vector<int> world_ranks = {}, int num_cores = 0);
  ~SharedEngine();
  SharedEngine(const SharedEngine&) = delete;
  SharedEngine& operator=(const SharedEngine&) = delete;

  std::string_view backend() const noexcept { return backend_; }
  const std::shared_ptr<Segment>& segment() const noexcept { return segment_; }
  const std::shared_ptr<Arena>& arena() const noexcept { return arena_; }
  int world_rank() const noexcept { return world_rank_; }
  PeerWatch* watch() const noexcept { return watch_.get(); }
  /// Whether the segment is part of a larger world.
  bool is_part() const noexcept { return is_part_; }
  /// The ranks' numbers in error messages.
  const std::vector<int>& world_ranks() const noexcept { return world_ranks_; }
  int name_of(int segment_rank) const noexcept { return world_ranks_[static_cast<size_t>(segment_rank)]; }

  void add(SharedCommunicator& communicator) { communicators_.push_back(&communicator); }
  void remove(SharedCommunicator& communicator);
  /// Operations in flight on all communicators.
  size_t outstanding() const noexcept { return outstanding_; }
  void begin_operation() noexcept {
    ++outstanding_;
    arena_->begin_operation();
  }
  void end_operations(size_t count) noexcept {
    outstanding_ -= count;
    arena_->end_operations(static_cast<uint32_t>(count));
  }

  const CommOptions& options() const noexcept { return options_; }
  /// Number of polls before a wait yields the core.
  int spins() const noexcept { return has_own_core_ ? kSpinsOnOwnCore : kSpinsOnSharedCore; }

  /// Ends the world on all ranks. The first call's text is the one they report. From any thread.
  void abort(int world_rank, std::string_view text) noexcept;

  /// Advances everything once. True if there was progress. Errors are stored in the operations.
  bool progress();
  /// progress(), and from time to time a check of the peers.
  void poll();
  /// poll(), then sleeps until a peer rings, unless `is_done()`.
  void pause(const std::function<bool()>& is_done, std::chrono::nanoseconds at_most);
  /// Also called by wait(), between its own polls.
  void set_side_work(std::function<SideWork()> work) { side_work_ = std::move(work); }
  /// Returns when `operation`, which is in `queue` of `communicator`, is complete, with or without error.
  void wait(SharedCommunicator& communicator, const TaskQueue& queue, const Operation& operation);

  /// Whether peer_failure() may return an error. Cheap.
  bool has_failure(const SharedCommunicator& communicator) const noexcept;
  /// The error of `communicator` if one of its ranks failed or is lost, else null.
  std::exception_ptr peer_failure(const SharedCommunicator& communicator, const Descriptor& call) const;

 private:
  static constexpr int kSpinsOnOwnCore = 1000, kSpinsOnSharedCore = 10;

  using Clock = std::chrono::steady_clock;

  std::exception_ptr left_or_late(const SharedCommunicator& communicator, const TaskQueue& queue,
                                  Clock::duration waited) const;
  void check_peers();
  void sleep(const std::function<bool()>& is_done, Clock::duration at_most);

  std::shared_ptr<Segment> segment_;
  std::shared_ptr<Arena> arena_;
  int world_rank_;
  std::string_view backend_;
  CommOptions options_;
  std::unique_ptr<PeerWatch> watch_;
  bool is_part_;
  std::function<SideWork()> side_work_;
  std::vector<int> world_ranks_;
  std::string lost_;  // text of the first lost peer: it may have died while writing the world's failure record
  std::vector<SharedCommunicator*> communicators_;
  size_t outstanding_ = 0;
  bool has_own_core_;  ///< spinning helps only while the awaited rank is running on another one
  int idle_polls_ = 0;
  Periodic process_check_{kProcessCheckInterval};
};

}  // namespace caravan::shared
