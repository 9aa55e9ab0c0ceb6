#pragma once

#include <cstddef>
#include <deque>
#include <functional>

namespace caravan {

/// Work of one rank that may run later, in FIFO order: weight gradients that nothing waits for yet, which are computed
/// while the rank waits for a collective of the backward pass, or at a position given by a schedule. A mesh, the meshes
/// derived from it and all their axes share one. Not thread-safe: one rank, one thread.
class DeferredWork {
 public:
  /// `work`, with everything that it holds, is kept until it has run or is cleared.
  void push(std::function<void()> work, const void* owner = nullptr) { queue_.push_back({owner, std::move(work)}); }

  /// Runs everything in order, including what is pushed meanwhile. Work may itself push, clear and call run_all. If
  /// some work throws, it is removed, the rest stays queued, and the exception propagates.
  void run_all();

  /// Runs the first `count`, or all if there are fewer.
  void run(size_t count);

  /// False: nothing overlaps collectives of split layers. Work does not run while one is waited for, and panels and
  /// ring blocks are not sent ahead. The results are the same.
  void set_overlaps(bool overlaps) noexcept { overlaps_ = overlaps; }
  bool overlaps() const noexcept { return overlaps_; }

  bool empty() const noexcept { return queue_.empty(); }
  size_t size() const noexcept { return queue_.size(); }
  /// Drops the work pushed by this owner without running it, such as after an error.
  void clear(const void* owner = nullptr) noexcept {
    std::erase_if(queue_, [&](const Piece& piece) { return piece.owner == owner; });
  }

 private:
  struct Piece {
    const void* owner;
    std::function<void()> work;
  };
  std::deque<Piece> queue_;
  bool overlaps_ = true;
};

}  // namespace caravan
