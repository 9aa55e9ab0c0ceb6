#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "caravan/comm/level.h"
#include "caravan/comm/options.h"
#include "caravan/comm/shared/arena.h"
#include "caravan/comm/shared/peer_watch.h"
#include "caravan/comm/shared/segment.h"
#include "caravan/comm/shared/task_queue.h"

namespace caravan::shared {

class SharedCommunicator;

/// What one rank has in flight, on all communicators split from one world. Waiting for one operation advances them all,
/// so ranks may wait for the same operations in different orders.
class Engine {
 public:
  /// `watch` may be null: ranks that are threads do not end alone. `world_ranks` is what errors call the ranks, where
  /// the segment's is a part of a larger world; empty: as they are numbered in the segment.
  Engine(std::shared_ptr<Segment> segment, int world_rank, std::string_view backend, const CommOptions& options,
         std::unique_ptr<PeerWatch> watch, std::vector<int> world_ranks = {});
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  std::string_view backend() const noexcept { return backend_; }
  const std::shared_ptr<Segment>& segment() const noexcept { return segment_; }
  const std::shared_ptr<Arena>& arena() const noexcept { return arena_; }
  int world_rank() const noexcept { return world_rank_; }
  PeerWatch* watch() const noexcept { return watch_.get(); }
  /// Whether the ranks of the segment are a part of a larger world.
  bool is_part() const noexcept { return is_part_; }
  /// What errors call the ranks of the segment.
  const std::vector<int>& world_ranks() const noexcept { return world_ranks_; }
  int name_of(int segment_rank) const noexcept { return world_ranks_[static_cast<size_t>(segment_rank)]; }

  void add(SharedCommunicator& communicator) { communicators_.push_back(&communicator); }
  void remove(SharedCommunicator& communicator);
  /// Operations begun and not complete, on all communicators.
  size_t outstanding() const noexcept { return outstanding_; }
  void begin_operation() noexcept {
    ++outstanding_;
    arena_->begin_operation();
  }
  void end_operations(size_t count) noexcept {
    outstanding_ -= count;
    arena_->end_operations(static_cast<uint32_t>(count));
  }

  /// How often it is worth to look again before something else is tried.
  int spins() const noexcept { return spins_; }

  /// Tells all ranks that nothing goes on. The first such text stands. From any thread.
  void abort(int world_rank, std::string_view text) noexcept;

  /// Advances everything once. True if anything was done. Errors end up in operations.
  bool progress();
  /// progress(), and now and then a look at the health of the peers of what is outstanding.
  void poll();
  /// As poll(), then sleeps until a peer rings, unless `is_done()`.
  void pause(const std::function<bool()>& is_done, std::chrono::nanoseconds at_most);
  /// Done by wait(), too, between its own.
  void drive_also(std::function<Besides()> work) { also_ = std::move(work); }
  /// Returns when `operation`, which is in `queue` of `communicator`, is complete, with or without error.
  void wait(SharedCommunicator& communicator, const TaskQueue& queue, const Operation& operation);

  /// Whether peer_failure has something to say.
  bool somebody_failed(const SharedCommunicator& communicator) const noexcept;
  /// The error of `communicator` if it cannot go on, else null: a rank gave up or is lost.
  std::exception_ptr peer_failure(const SharedCommunicator& communicator, const Descriptor& call) const;

 private:
  using Clock = std::chrono::steady_clock;

  std::exception_ptr left_or_late(const SharedCommunicator& communicator, const TaskQueue& queue,
                                  Clock::duration waited) const;
  void look_for_ended_peers();
  void sleep(const std::function<bool()>& is_done, Clock::duration at_most);

  std::shared_ptr<Segment> segment_;
  std::shared_ptr<Arena> arena_;
  int world_rank_;
  std::string_view backend_;
  CommOptions options_;
  std::unique_ptr<PeerWatch> watch_;
  bool is_part_;
  std::function<Besides()> also_;
  std::vector<int> world_ranks_;
  std::string
      lost_;  // the first peer found lost, in words, in case it died while it held the world's record of failure
  std::vector<SharedCommunicator*> communicators_;
  size_t outstanding_ = 0;
  int spins_;
  int idle_polls_ = 0;
  Clock::time_point next_look_{};
};

}  // namespace caravan::shared
