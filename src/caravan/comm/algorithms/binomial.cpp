#include "caravan/comm/algorithms/binomial.h"

#include <bit>

namespace caravan::algorithms {
namespace {

size_t num_levels(int size) { return static_cast<size_t>(std::bit_width(static_cast<unsigned>(size - 1))); }

/// Calls up(level, parent) and down(level, child) for the edges of this rank; level 0 connects neighbours.
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

MessagePlan binomial_broadcast(int rank, int size, int64_t count, int root) {
  const size_t levels = num_levels(size);
  MessagePlan plan(levels);
  for_each_edge(
      rank, size, root,
      [&](size_t level, int parent) {
        plan.recv(levels - 1 - level, parent, {0, count});
      },
      [&](size_t level, int child) {
        plan.send(levels - 1 - level, child, {0, count});
      });
  return plan;
}

MessagePlan binomial_reduce(int rank, int size, int64_t count, int root) {
  MessagePlan plan(num_levels(size));
  plan.num_partial_steps = plan.steps.size();
  for_each_edge(
      rank, size, root,
      [&](size_t level, int parent) {
        plan.send(level, parent, {0, count});
      },
      [&](size_t level, int child) {
        plan.add(level, child, {0, count});
      });
  return plan;
}

}  // namespace caravan::algorithms
