#include "caravan/comm/algorithms/ring.h"

namespace caravan::algorithms {
namespace {

struct Neighbours {
  int next;
  int previous;
};

Neighbours neighbours(int rank, int n) { return {(rank + 1) % n, (rank + n - 1) % n}; }

void ring_scatter(MessagePlan& plan, int rank, const Parts& parts) {
  const auto [next, previous] = neighbours(rank, parts.size());
  for (int step = 0; step + 1 < parts.size(); ++step) {
    plan.send(static_cast<size_t>(step), next, parts.around(rank - step - 1));
    plan.add(static_cast<size_t>(step), previous, parts.around(rank - step - 2));
  }
}

void ring_gather(MessagePlan& plan, size_t first, int rank, const Parts& parts) {
  const auto [next, previous] = neighbours(rank, parts.size());
  for (int step = 0; step + 1 < parts.size(); ++step) {
    plan.send(first + static_cast<size_t>(step), next, parts.around(rank - step));
    plan.recv(first + static_cast<size_t>(step), previous, parts.around(rank - step - 1));
  }
}

}  // namespace

MessagePlan ring_reduce_scatter(int rank, const Parts& parts) {
  MessagePlan plan(static_cast<size_t>(parts.size()) - 1);
  plan.num_partial_steps = plan.steps.size();
  ring_scatter(plan, rank, parts);
  return plan;
}

MessagePlan ring_all_gather(int rank, const Parts& parts) {
  MessagePlan plan(static_cast<size_t>(parts.size()) - 1);
  ring_gather(plan, 0, rank, parts);
  return plan;
}

MessagePlan ring_all_reduce(int rank, const Parts& parts) {
  const size_t half = static_cast<size_t>(parts.size()) - 1;
  MessagePlan plan(2 * half);
  plan.num_partial_steps = half;
  ring_scatter(plan, rank, parts);
  ring_gather(plan, half, rank, parts);
  return plan;
}

}  // namespace caravan::algorithms
