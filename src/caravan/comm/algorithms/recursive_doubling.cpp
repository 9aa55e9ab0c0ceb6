#include "caravan/comm/algorithms/recursive_doubling.h"

#include <algorithm>
#include <bit>

#include "caravan/comm/algorithms/fold.h"

namespace caravan::algorithms {

MessagePlan recursive_doubling_all_reduce(int rank, int size, int64_t count) {
  const Fold fold(rank, size);
  const size_t first = fold.is_needed() ? 1 : 0;
  const size_t levels = static_cast<size_t>(fold.num_levels());
  const Range all{0, count};
  MessagePlan plan(first + levels + first);
  plan.num_partial_steps = first + levels;
  fold.send_input(plan, 0, all);
  for (size_t level = 0; level < levels && !fold.is_idle(); ++level) {
    const int peer = fold.rank_of(fold.actor() ^ 1 << level);
    plan.send(first + level, peer, all);
    plan.add(first + level, peer, all);
  }
  fold.send_result(plan, first + levels, all);
  return plan;
}

MessagePlan recursive_doubling_all_gather(int rank, const Parts& parts) {
  const int n = parts.size();
  // Parts first .. first + num - 1, which wrap around: those after the last part are a second range.
  const auto for_each_range = [&](int first, int num, auto each) {
    first %= n;
    const int last = std::min(first + num, n);
    each(parts.span(first, last));
    if (first + num > n) each(parts.span(0, first + num - n));
  };
  MessagePlan plan(static_cast<size_t>(std::bit_width(static_cast<unsigned>(n - 1))));
  for (size_t step = 0; step < plan.steps.size(); ++step) {
    const int distance = 1 << step;
    const int num = std::min(distance, n - distance);
    for_each_range(rank, num, [&](Range range) { plan.send(step, (rank + n - distance) % n, range); });
    for_each_range(rank + distance, num, [&](Range range) { plan.recv(step, (rank + distance) % n, range); });
  }
  return plan;
}

}  // namespace caravan::algorithms
