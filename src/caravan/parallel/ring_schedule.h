#pragma once

#include <cstdint>
#include <vector>

namespace caravan {

/// One step of the attention of a rank. "Sent on": to the next rank; what comes is from the one before.
struct RingStep {
  enum class Kind : uint8_t {
    pass,     ///< starts to send on the keys and values of this turn, and to receive those of the next
    compute,  ///< the attention to the block of this turn, or its gradients
    receive,  ///< ends what `pass` has started
    expect,   ///< backward: starts to receive what other ranks have summed for the keys and values of this turn
    add,      ///< backward: ends that, and adds this rank's own; in turn n, which is home, there are no more
    give,     ///< backward: starts to send the sum on
  };
  Kind kind;
  int turn;  ///< from 0, the rank's own block
  bool operator==(const RingStep&) const noexcept = default;
};

/// The steps of n > 1 ranks, the same on each of them: what ring_attention executes. If it `overlaps`, what travels
/// does so while a turn is computed, else before or after. A pure function.
std::vector<RingStep> ring_schedule(int n, bool is_backward, bool overlaps = true);

/// What coordinate `coord` computes in a turn, of `length` local tokens: its queries and keys in zig-zag order that see
/// each other. A pure function.
struct RingPart {
  int from = 0;  ///< the coordinate whose keys these are
  int64_t first_query = 0;
  int64_t num_queries = 0;
  int64_t num_keys = 0;    ///< the first of that coordinate
  bool is_causal = false;  ///< query i sees key i and those before; else all see all
};
RingPart ring_part(int coord, int turn, int n, int64_t length);

}  // namespace caravan
