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

/// Parts of the working buffer that lie behind each other, one a rank.
class Parts {
 public:
  explicit Parts(std::span<const int64_t> counts);
  /// Nearly equal ones: the first count % n have one element more.
  static Parts equal(int64_t count, int n);

  int size() const noexcept { return static_cast<int>(begins_.size()) - 1; }
  Range operator[](int part) const { return span(part, part + 1); }
  /// Parts are numbered around: part n is part 0, part -1 is part n - 1.
  Range around(int part) const { return (*this)[(part % size() + size()) % size()]; }
  /// Parts first .. last - 1 together.
  Range span(int first, int last) const {
    const int64_t begin = begins_[static_cast<size_t>(first)];
    return {begin, begins_[static_cast<size_t>(last)] - begin};
  }
  Range all() const { return span(0, size()); }

 private:
  std::vector<int64_t> begins_;
};

/// One message. A receiving one may add: what comes is reduced with what is there.
struct Move {
  int peer = 0;  ///< this rank itself: elements are copied from where they are sent to where they are received
  Range range;
  bool adds = false;
  bool operator==(const Move&) const = default;
};

/// Messages on their way together. Sends read what stood there before the step. What is received without adding
/// overlaps nothing else of the step; ranges to which several ranks add are equal or disjoint, and all that comes for
/// one in a step is added in the order of ranks, this rank's own at its own place.
struct Step {
  std::vector<Move> sends;
  std::vector<Move> recvs;
  bool empty() const noexcept { return sends.empty() && recvs.empty(); }
  bool operator==(const Step&) const = default;
};

/// What one rank does in a collective: a column of the table. All ranks have the same number of steps, some empty, and
/// what is sent in a step is received in the same step; therefore no schedule deadlocks, even if every send waits for
/// its receiver. The working buffer is as large as the whole vector; of all_to_all it is `out`, then `in`. It holds the
/// input where the rank has one; frame_of (problem.h) says where, and what part of it becomes the result.
struct Schedule {
  explicit Schedule(size_t num_steps = 0) : steps(num_steps) {}

  std::vector<Step> steps;
  /// In the first of them unfinished sums travel: 16-bit floats go as fp32 there, twice the bytes, and are rounded
  /// after them.
  size_t num_partial_steps = 0;

  /// Moves of no elements are left out.
  void send(size_t step, int peer, Range range);
  void recv(size_t step, int peer, Range range);
  void add(size_t step, int peer, Range range);
  bool operator==(const Schedule&) const = default;
};

/// What a rank's column costs it.
struct Cost {
  int64_t steps = 0;     ///< not counting empty ones
  int64_t messages = 0;  ///< sent
  int64_t bytes = 0;     ///< sent
};
Cost cost(const Schedule& schedule, int rank, Dtype dtype, ReduceOp op);
/// The largest of each over the ranks.
Cost longest(std::span<const Schedule> ranks, Dtype dtype, ReduceOp op);

/// The dtype of what travels in the first num_partial_steps: fp32 for sums of 16-bit floats.
Dtype partial_dtype(Dtype dtype, ReduceOp op) noexcept;

/// The table: a row a step, a column a rank. `>1 [4,8)` sends elements 4..7 to rank 1, `<3 [0,4)` receives, `<3 +[0,4)`
/// receives and adds, `= [0,4)` copies.
std::string to_string(std::span<const Schedule> ranks);

}  // namespace caravan::algorithms
