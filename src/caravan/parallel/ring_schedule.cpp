#include "caravan/parallel/ring_schedule.h"

namespace caravan {

std::vector<RingStep> ring_schedule(int n, bool is_backward, bool overlaps) {
  using enum RingStep::Kind;
  std::vector<RingStep> steps;
  for (int turn = 0; turn < n; ++turn) {
    const bool has_next = turn + 1 < n;
    const bool adds = is_backward && turn > 0;
    if (adds && overlaps) steps.push_back({expect, turn});
    if (has_next && overlaps) steps.push_back({pass, turn});
    steps.push_back({compute, turn});
    if (adds && !overlaps) steps.push_back({expect, turn});
    if (adds) steps.push_back({add, turn});
    if (is_backward) steps.push_back({give, turn});
    if (has_next && !overlaps) steps.push_back({pass, turn});
    if (has_next) steps.push_back({receive, turn});
  }
  if (is_backward) {
    steps.push_back({expect, n});
    steps.push_back({add, n});
  }
  return steps;
}

RingPart ring_part(int coord, int turn, int n, int64_t length) {
  const int from = (coord + n - turn) % n;
  // Of a coordinate before this one, all queries see the first chunk and none the second; of one after it, the second
  // chunk of queries sees both.
  if (from == coord) return {from, 0, length, length, true};
  if (from < coord) return {from, 0, length, length / 2, false};
  return {from, length / 2, length / 2, length, false};
}

}  // namespace caravan
