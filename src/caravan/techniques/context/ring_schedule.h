#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace caravan {

/// One step of a rank's attention. A rank sends to the next rank of the ring and receives from the previous one. `turn`
/// is the turn in which the receiver of a message needs it: a rank passes on the keys of turn t-1 as those of turn t.
struct RingStep {
  enum class Kind : uint8_t {
    send_keys,  ///< starts to send the keys and values that this rank has, as those of `turn`
    recv_keys,  ///< starts to receive the keys and values of `turn`
    wait_keys,  ///< waits for both
    compute,    ///< the attention to the keys of `turn`, or its gradients
    add,        ///< backward: adds the gradients of these keys to their sum; in turn 0 they are the sum
    send_sums,  ///< backward: starts to send the sum, for `turn`
    recv_sums,  ///< backward: starts to receive the sums of other ranks for the keys of `turn`
    wait_sums,  ///< backward: waits for both; the sum of turn n is for the rank's own keys
  };
  Kind kind;
  int turn;  ///< from 0, the rank's own keys
  bool operator==(const RingStep&) const noexcept = default;
};

/// "send keys of turn 1", "wait for sums of turn 2".
std::string to_string(const RingStep& step);

/// The steps of n > 1 ranks, the same on each of them. With overlap, messages are in flight while a turn is computed,
/// else between turns. A send and the receive of the same message are adjacent, so every rank sends in the order in
/// which the next one receives. A pure function.
std::vector<RingStep> ring_schedule(int n, bool is_backward, bool overlaps = true);

/// Executes the tables of all ranks of a ring without data. Throws InternalError, naming rank and step, unless every
/// message is received as what it was sent as, no rank waits forever, and everything computed with, added or sent is
/// there. A pure function.
void check_ring(std::span<const std::span<const RingStep>> tables, bool is_backward);

/// ring_schedule, checked by check_ring at the first call for n ranks. Thread-safe.
std::vector<RingStep> checked_ring_schedule(int n, bool is_backward, bool overlaps);

/// What ring_attention executes.
using RingSchedule = std::function<std::vector<RingStep>(int n, bool is_backward, bool overlaps)>;

/// What a coordinate computes in a turn: ranges of its queries and of another coordinate's keys that see each other.
struct RingPart {
  int from = 0;  ///< the coordinate whose keys these are
  int64_t first_query = 0;
  int64_t num_queries = 0;
  int64_t num_keys = 0;    ///< from the first key of that coordinate
  bool is_causal = false;  ///< query i sees key i and those before; else all see all
};
}  // namespace caravan
