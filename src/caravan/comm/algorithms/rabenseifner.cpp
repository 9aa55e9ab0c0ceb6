#include "caravan/comm/algorithms/rabenseifner.h"

#include "caravan/comm/algorithms/fold.h"

namespace caravan::algorithms {

Schedule rabenseifner_all_reduce(int rank, int size, int64_t count) {
  const Fold fold(rank, size);
  const size_t first = fold.is_needed() ? 1 : 0;
  const size_t levels = static_cast<size_t>(fold.num_levels());
  const Parts parts = Parts::equal(count, fold.num_actors());
  Schedule schedule(first + 2 * levels + first);
  schedule.num_partial_steps = first + levels;
  fold.give_input(schedule, 0, parts.all());
  for (size_t level = 0; level < levels && !fold.stands_aside(); ++level) {
    // The parts whose numbers begin with the same bits as this actor's and its peer's: `distance` for each of the two.
    const int distance = 1 << level;
    const int actor = fold.actor();
    const int peer = fold.rank_of(actor ^ distance);
    const int own = actor / distance * distance;
    const Range own_half = parts.span(own, own + distance);
    const Range other_half = parts.span(own ^ distance, (own ^ distance) + distance);
    const size_t halving = first + levels - 1 - level;
    schedule.send(halving, peer, other_half);
    schedule.add(halving, peer, own_half);
    const size_t doubling = first + levels + level;
    schedule.send(doubling, peer, own_half);
    schedule.recv(doubling, peer, other_half);
  }
  fold.give_result(schedule, first + 2 * levels, parts.all());
  return schedule;
}

}  // namespace caravan::algorithms
