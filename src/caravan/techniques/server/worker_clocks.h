#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace caravan {

/// No worker waits for a slower one.
inline constexpr int64_t kUnbounded = -1;

/// Decides which workers may begin their next step, and when all stop: the stale synchronous parallel model of Ho et
/// al. ("More effective distributed ML via a stale synchronous parallel parameter server", NIPS 2013). A worker's clock
/// is the number of steps that it has done. It asks before each step, and is answered when it may be at most
/// `staleness` steps ahead of the slowest: with 0 no worker begins a step before all have done the previous one. When
/// the slowest has done `drain_at` steps, every worker that asks is told to drain. Independent of messages and tensors;
/// one rank has it.
class WorkerClocks {
 public:
  enum class Answer : int64_t { go, drain };
  struct Due {
    int worker;
    Answer answer;
  };

  /// `clocks` of all workers; drain_at is larger than the smallest.
  WorkerClocks(std::vector<int64_t> clocks, int64_t staleness, int64_t drain_at);

  /// `worker` has done `clock` steps and wants to begin the next. With `wants_drain` the drain begins now.
  void ask(int worker, int64_t clock, bool wants_drain = false);
  /// The answers due since the last call, in the order of workers.
  std::vector<Due> take_answers();

  /// Whether every worker was told to drain.
  bool is_drained() const noexcept;
  int64_t slowest() const noexcept;
  /// The most steps that a worker was ahead of the slowest when it began a step.
  int64_t largest_lead() const noexcept { return largest_lead_; }

 private:
  enum class State : uint8_t { working, asking, drained };

  std::vector<int64_t> clocks_;
  std::vector<State> states_;
  int64_t staleness_;
  int64_t drain_at_;
  bool is_draining_ = false;
  int64_t largest_lead_ = 0;
};

/// The updates of one shard by worker, and which workers may read it.
class ShardClock {
 public:
  ShardClock(std::vector<int64_t> clocks, int64_t staleness);

  /// Counts a gradient of `worker`. Returns its staleness: the number of updates since `worker` read the shard.
  int64_t apply(int worker) noexcept;
  /// Whether the shard has the updates of all workers up to `staleness` steps before the next step of `worker`. Call it
  /// when the shard has the last update of `worker` itself.
  bool may_read(int worker) const noexcept;
  /// `worker` reads the shard now.
  void read(int worker) noexcept { read_[static_cast<size_t>(worker)] = version_; }

  int64_t version() const noexcept { return version_; }  ///< number of updates since construction
  int64_t slowest() const noexcept;                      ///< steps of the slowest worker that the shard includes

 private:
  std::vector<int64_t> clocks_;
  std::vector<int64_t> read_;  ///< version that each worker has
  int64_t staleness_;
  int64_t version_ = 0;
};

}  // namespace caravan
