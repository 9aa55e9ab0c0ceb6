#include "caravan/comm/algorithms/rabenseifner.h"

#include "caravan/comm/algorithms/fold.h"

namespace caravan::algorithms {

MessagePlan rabenseifner_all_reduce(int rank, int size, int64_t count) {
  const Fold fold(rank, size);
  const size_t first = fold.is_needed() ? 1 : 0;
  const size_t levels = static_cast<size_t>(fold.num_levels());
  const Parts parts = Parts::equal(count, fold.num_actors());
  MessagePlan plan(first + 2 * levels + first);
  plan.num_partial_steps = first + levels;
  fold.send_input(plan, 0, parts.all());
  for (size_t level = 0; level < levels && !fold.is_idle(); ++level) {
    // The parts whose numbers have the same leading bits as this actor and its peer: `distance` of them for each.
    const int distance = 1 << level;
    const int actor = fold.actor();
    const int peer = fold.rank_of(actor ^ distance);
    const int own = actor / distance * distance;
    const Range own_half = parts.span(own, own + distance);
    const Range other_half = parts.span(own ^ distance, (own ^ distance) + distance);
    const size_t halving = first + levels - 1 - level;
    plan.send(halving, peer, other_half);
    plan.add(halving, peer, own_half);
    const size_t doubling = first + levels + level;
    plan.send(doubling, peer, own_half);
    plan.recv(doubling, peer, other_half);
  }
  fold.send_result(plan, first + 2 * levels, parts.all());
  return plan;
}

}  // namespace caravan::algorithms
