#include "caravan/comm/algorithms/ring.h"

namespace caravan::algorithms {
namespace {

struct Neighbours {
  int next;
  int previous;
};

Neighbours neighbours(int rank, int n) { return {(rank + 1) % n, (rank + n - 1) % n}; }

void scatter(Schedule& schedule, int rank, const Parts& parts) {
  const auto [next, previous] = neighbours(rank, parts.size());
  for (int step = 0; step + 1 < parts.size(); ++step) {
    schedule.send(static_cast<size_t>(step), next, parts.around(rank - step - 1));
    schedule.add(static_cast<size_t>(step), previous, parts.around(rank - step - 2));
  }
}

void gather(Schedule& schedule, size_t first, int rank, const Parts& parts) {
  const auto [next, previous] = neighbours(rank, parts.size());
  for (int step = 0; step + 1 < parts.size(); ++step) {
    schedule.send(first + static_cast<size_t>(step), next, parts.around(rank - step));
    schedule.recv(first + static_cast<size_t>(step), previous, parts.around(rank - step - 1));
  }
}

}  // namespace

Schedule ring_reduce_scatter(int rank, const Parts& parts) {
  Schedule schedule(static_cast<size_t>(parts.size()) - 1);
  schedule.num_partial_steps = schedule.steps.size();
  scatter(schedule, rank, parts);
  return schedule;
}

Schedule ring_all_gather(int rank, const Parts& parts) {
  Schedule schedule(static_cast<size_t>(parts.size()) - 1);
  gather(schedule, 0, rank, parts);
  return schedule;
}

Schedule ring_all_reduce(int rank, const Parts& parts) {
  const size_t half = static_cast<size_t>(parts.size()) - 1;
  Schedule schedule(2 * half);
  schedule.num_partial_steps = half;
  scatter(schedule, rank, parts);
  gather(schedule, half, rank, parts);
  return schedule;
}

}  // namespace caravan::algorithms
