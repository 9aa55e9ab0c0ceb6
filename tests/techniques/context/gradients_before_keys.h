#pragma once

#include <vector>

#include "caravan/techniques/context/ring_schedule.h"

namespace caravan::testing {

/// A wrong RingSchedule: without overlap, a rank sends the gradients of a turn before it passes keys on, and receives
/// them after. Messages match in order, so every rank takes gradients for keys. Forward passes are correct.
inline std::vector<RingStep> gradients_before_keys(int n, bool is_backward, bool overlaps) {
  if (!is_backward || overlaps) return ring_schedule(n, is_backward, overlaps);
  using enum RingStep::Kind;
  std::vector<RingStep> steps;
  for (int turn = 0; turn < n; ++turn) {
    steps.push_back({compute, turn});
    if (turn > 0) steps.insert(steps.end(), {{recv_sums, turn}, {wait_sums, turn}});
    steps.insert(steps.end(), {{add, turn}, {send_sums, turn + 1}});
    if (turn + 1 < n) steps.insert(steps.end(), {{send_keys, turn + 1}, {recv_keys, turn + 1}, {wait_keys, turn + 1}});
  }
  steps.insert(steps.end(), {{recv_sums, n}, {wait_sums, n}});
  return steps;
}

}  // namespace caravan::testing
