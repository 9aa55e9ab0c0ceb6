#include "caravan/comm/algorithms/binomial.h"

#include <bit>

namespace caravan::algorithms {
namespace {

size_t num_levels(int size) { return static_cast<size_t>(std::bit_width(static_cast<unsigned>(size - 1))); }

/// Calls up(level, parent) and down(level, child) for the edges of this rank; level 0 joins neighbours.
template <class Up, class Down>
void for_each_edge(int rank, int size, int root, Up up, Down down) {
  const size_t levels = num_levels(size);
  const int from_root = (rank + size - root) % size;
  for (size_t level = 0; level < levels; ++level) {
    const int distance = 1 << level;
    const int place = from_root % (2 * distance);
    if (place == distance) up(level, (rank + size - distance) % size);
    if (place == 0 && from_root + distance < size) down(level, (rank + distance) % size);
  }
}

}  // namespace

Schedule binomial_broadcast(int rank, int size, int64_t count, int root) {
  const size_t levels = num_levels(size);
  Schedule schedule(levels);
  for_each_edge(
      rank, size, root,
      [&](size_t level, int parent) {
        schedule.recv(levels - 1 - level, parent, {0, count});
      },
      [&](size_t level, int child) {
        schedule.send(levels - 1 - level, child, {0, count});
      });
  return schedule;
}

Schedule binomial_reduce(int rank, int size, int64_t count, int root) {
  Schedule schedule(num_levels(size));
  schedule.num_partial_steps = schedule.steps.size();
  for_each_edge(
      rank, size, root,
      [&](size_t level, int parent) {
        schedule.send(level, parent, {0, count});
      },
      [&](size_t level, int child) {
        schedule.add(level, child, {0, count});
      });
  return schedule;
}

}  // namespace caravan::algorithms
