#include "caravan/comm/algorithms/recursive_doubling.h"

#include <algorithm>
#include <bit>

#include "caravan/comm/algorithms/fold.h"

namespace caravan::algorithms {

Schedule recursive_doubling_all_reduce(int rank, int size, int64_t count) {
  const Fold fold(rank, size);
  const size_t first = fold.is_needed() ? 1 : 0;
  const size_t levels = static_cast<size_t>(fold.num_levels());
  const Range all{0, count};
  Schedule schedule(first + levels + first);
  schedule.num_partial_steps = first + levels;
  fold.give_input(schedule, 0, all);
  for (size_t level = 0; level < levels && !fold.stands_aside(); ++level) {
    const int peer = fold.rank_of(fold.actor() ^ 1 << level);
    schedule.send(first + level, peer, all);
    schedule.add(first + level, peer, all);
  }
  fold.give_result(schedule, first + levels, all);
  return schedule;
}

Schedule recursive_doubling_all_gather(int rank, const Parts& parts) {
  const int n = parts.size();
  // Parts first .. first + num - 1, around: the ones behind the last part are a second range.
  const auto for_each_range = [&](int first, int num, auto each) {
    first %= n;
    const int last = std::min(first + num, n);
    each(parts.span(first, last));
    if (first + num > n) each(parts.span(0, first + num - n));
  };
  Schedule schedule(static_cast<size_t>(std::bit_width(static_cast<unsigned>(n - 1))));
  for (size_t step = 0; step < schedule.steps.size(); ++step) {
    const int distance = 1 << step;
    const int num = std::min(distance, n - distance);
    for_each_range(rank, num, [&](Range range) { schedule.send(step, (rank + n - distance) % n, range); });
    for_each_range(rank + distance, num, [&](Range range) { schedule.recv(step, (rank + distance) % n, range); });
  }
  return schedule;
}

}  // namespace caravan::algorithms
