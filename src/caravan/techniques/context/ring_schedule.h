#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace caravan {

/// One step of the attention of a rank. It sends to the next rank of the ring and receives from the one before it.
/// `turn` is the turn in which the receiver of a message needs it: a rank sends on the keys of turn t-1 as those of
/// turn t.
struct RingStep {
  enum class Kind : uint8_t {
    send_keys,  ///< starts to send the keys and values that this rank has, as those of `turn`
    recv_keys,  ///< starts to receive the keys and values of `turn`
    wait_keys,  ///< waits for both
    compute,    ///< the attention to the keys of `turn`, or its gradients
    add,        ///< backward: adds the gradients of these keys to the sum for them; in turn 0 they are the sum
    send_sums,  ///< backward: starts to send the sum, for `turn`
    recv_sums,  ///< backward: starts to receive what other ranks have summed for the keys of `turn`
    wait_sums,  ///< backward: waits for both; the sum of turn n is that for the rank's own keys
  };
  Kind kind;
  int turn;  ///< from 0, the rank's own keys
  bool operator==(const RingStep&) const noexcept = default;
};

/// "send keys of turn 1", "wait for sums of turn 2".
std::string to_string(const RingStep& step);

/// The steps of n > 1 ranks, the same on each of them. If they overlap, messages travel while a turn is computed, else
/// between turns. A send and the receive of the same message stand side by side, so every rank sends in the order in
/// which the next one receives. A pure function.
std::vector<RingStep> ring_schedule(int n, bool is_backward, bool overlaps = true);

/// Executes the tables of all ranks of a ring without data. Throws InternalError, which names rank and step, unless
/// every message is received as what it was sent as, no rank waits for ever, and what is computed with, added or sent
/// is there. A pure function.
void check_ring(std::span<const std::span<const RingStep>> tables, bool is_backward);

/// ring_schedule, checked by check_ring for n ranks when it is first asked for. Thread-safe.
std::vector<RingStep> checked_ring_schedule(int n, bool is_backward, bool overlaps);

/// What ring_attention executes.
using RingSchedule = std::function<std::vector<RingStep>(int n, bool is_backward, bool overlaps)>;

/// What a coordinate computes in a turn: its queries, and keys of another coordinate, that see each other.
struct RingPart {
  int from = 0;  ///< the coordinate whose keys these are
  int64_t first_query = 0;
  int64_t num_queries = 0;
  int64_t num_keys = 0;    ///< the first of that coordinate
  bool is_causal = false;  ///< query i of these sees key i and those before; else all see all
};
}  // namespace caravan
