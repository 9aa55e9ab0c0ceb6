#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "caravan/comm/communicator.h"

namespace caravan::measure {

/// One case to measure.
struct BenchCase {
  Verb verb = Verb::all_reduce;
  Dtype dtype = Dtype::fp32;
  int64_t bytes = 0;      ///< of the whole, see rates.h; parts differ by at most one element
  bool copy = false;      ///< plain memory instead of Communicator::allocate
  bool in_place = false;  ///< in and out are one buffer, or one is part of the other
};

/// Whether a verb has a choice to work in place. all_to_all and messages cannot; broadcast always does.
bool works_in_place(Verb verb) noexcept;

/// The buffers of one rank for one case, and the call on them. The root is rank 0. `send`: each rank sends to the
/// next one and receives from the previous one. `recv`: ranks 2i and 2i+1 pass a message back and forth, which counts
/// as two calls; an odd last rank idles.
class Exercise {
 public:
  /// Called by every rank of `world` with the same case. Throws UsageError if bytes is not a positive multiple of
  /// the element size, if in_place is not possible, and for a world of one rank.
  Exercise(Communicator& world, const BenchCase& bench_case);

  const BenchCase& bench_case() const noexcept { return case_; }
  /// Calls of the verb on the critical path of one call(): 2 for recv.
  int calls_in_one() const noexcept { return case_.verb == Verb::recv ? 2 : 1; }

  void call();
  /// One call on numbers whose result is known. Returns "" if it is right, else what is wrong. Called by every rank.
  /// Leaves random numbers in the buffers, as the constructor does: zeros may be faster than real data. Repeated sums
  /// in place overflow to infinity, which takes the same time.
  std::string check();

 private:
  struct Part {
    int64_t first = 0;
    int64_t count = 0;
  };
  Part part(int rank) const noexcept;
  void allocate();
  Buffer at(const std::shared_ptr<void>& memory, int64_t first, int64_t count) const noexcept;
  void write_input();
  void write_random() const;
  std::string compare_output() const;

  Communicator& world_;
  BenchCase case_;
  int64_t count_;  ///< elements of the whole
  std::vector<int64_t> parts_;
  std::vector<int64_t> own_part_;  ///< all_to_all: what every rank sends here
  std::shared_ptr<void> in_memory_;
  std::shared_ptr<void> out_memory_;
  Buffer in_;
  Buffer out_;
};

}  // namespace caravan::measure
