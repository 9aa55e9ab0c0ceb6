#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "caravan/comm/types.h"

namespace caravan::algorithms {

/// Elements [begin, begin + count) of the working buffer.
struct Range {
  int64_t begin = 0;
  int64_t count = 0;
  int64_t end() const noexcept { return begin + count; }
  bool operator==(const Range&) const = default;
};

/// Consecutive parts of the working buffer, one per rank.
class Parts {
 public:
  explicit Parts(std::span<const int64_t> counts);
  /// Nearly equal parts: the first count % n have one element more.
  static Parts equal(int64_t count, int n);

  int size() const noexcept { return static_cast<int>(begins_.size()) - 1; }
  Range operator[](int part) const { return span(part, part + 1); }
  /// The index wraps around: part n is part 0, part -1 is part n - 1.
  Range around(int part) const { return (*this)[(part % size() + size()) % size()]; }
  /// The union of the parts first .. last - 1.
  Range span(int first, int last) const {
    const int64_t begin = begins_[static_cast<size_t>(first)];
    return {begin, begins_[static_cast<size_t>(last)] - begin};
  }
  Range all() const { return span(0, size()); }

 private:
  std::vector<int64_t> begins_;
};

/// One message. A recv may add: what arrives is reduced with what is there.
struct Move {
  int peer = 0;  ///< if it is this rank itself, elements are copied from the range sent to the range received
  Range range;
  bool adds = false;
  bool operator==(const Move&) const = default;
};

/// Messages that are in flight together. Sends read the values from before the step. A range that is received without
/// adding overlaps no other range of the step. Ranges to which several ranks add are equal or disjoint; what arrives
/// for one range in a step is added in rank order, with this rank's own value at its own position.
struct Step {
  std::vector<Move> sends;
  std::vector<Move> recvs;
  bool empty() const noexcept { return sends.empty() && recvs.empty(); }
  bool operator==(const Step&) const = default;
};

/// What one rank does in a collective: a column of the table. All ranks have the same number of steps, some of them
/// empty, and what is sent in a step is received in the same step. So no plan deadlocks, even if every send waits for
/// its receiver. The working buffer is as large as the whole vector; for all_to_all it is `out` followed by `in`. It
/// begins with the input where the rank has one; frame_of (problem.h) has its range, and the range that becomes the
/// result.
struct MessagePlan {
  explicit MessagePlan(size_t num_steps = 0) : steps(num_steps) {}

  std::vector<Step> steps;
  /// The number of first steps that send partial sums. 16-bit floats are sent as fp32 there, twice the bytes, and
  /// rounded after them.
  size_t num_partial_steps = 0;

  /// Append a move to a step; a no-op for an empty range.
  void send(size_t step, int peer, Range range);
  void recv(size_t step, int peer, Range range);
  void add(size_t step, int peer, Range range);
  bool operator==(const MessagePlan&) const = default;
};

/// The cost of one rank's plan.
struct Cost {
  int64_t steps = 0;     ///< without empty ones
  int64_t messages = 0;  ///< sent
  int64_t bytes = 0;     ///< sent
};
Cost cost(const MessagePlan& plan, int rank, Dtype dtype, ReduceOp op);
/// The maximum of each over the ranks.
Cost longest(std::span<const MessagePlan> ranks, Dtype dtype, ReduceOp op);

/// The dtype of what the first num_partial_steps send: fp32 for sums of 16-bit floats.
Dtype partial_dtype(Dtype dtype, ReduceOp op) noexcept;

/// The table: one row per step, one column per rank. `>1 [4,8)` sends elements 4..7 to rank 1, `<3 [0,4)` receives, `<3
/// +[0,4)` receives and adds, `= [0,4)` copies.
std::string to_string(std::span<const MessagePlan> ranks);

}  // namespace caravan::algorithms
