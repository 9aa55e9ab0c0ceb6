#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "caravan/comm/communicator.h"

namespace caravan::measure {

/// One thing to measure.
struct Measurand {
  Verb verb = Verb::all_reduce;
  Dtype dtype = Dtype::fp32;
  int64_t bytes = 0;      ///< of the whole, see rates.h; cut into parts that differ by one element at most
  bool copy = false;      ///< plain memory instead of Communicator::allocate
  bool in_place = false;  ///< in and out are, or share, one buffer
};

/// Whether a verb can work in place: not the exchanges and messages. broadcast always does, a barrier has no buffer.
bool works_in_place(Verb verb) noexcept;

/// The buffers of one rank for one measurand, and the call on them. Verbs with a root take rank 0. `send`: each rank
/// sends to the next and receives from the one before. `recv`: ranks 2i and 2i+1 pass one message forth and back, which
/// are two calls: time them as half of it; an odd last rank stands aside.
class Exercise {
 public:
  /// Every rank of `world`, with the same measurand. Throws UsageError for bytes below one element or not a multiple of
  /// it, for in_place where it means nothing, and for a world of one rank.
  Exercise(Communicator& world, const Measurand& measurand);

  const Measurand& measurand() const noexcept { return measurand_; }
  /// Calls of the verb on the critical path of one call(): 2 for recv.
  int calls_in_one() const noexcept { return measurand_.verb == Verb::recv ? 2 : 1; }

  void call();
  /// One call on numbers whose result is known; "" if they came out right, else what is wrong. Buffers are zero after
  /// it: repeated sums in place stay finite. Every rank.
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
  std::string compare_output() const;

  Communicator& world_;
  Measurand measurand_;
  int64_t count_;  ///< elements of the whole
  std::vector<int64_t> parts_;
  std::vector<int64_t> own_part_;  ///< all_to_all: what every rank sends here
  std::shared_ptr<void> in_memory_;
  std::shared_ptr<void> out_memory_;
  Buffer in_;
  Buffer out_;
};

}  // namespace caravan::measure
