#include "caravan/comm/algorithms/chain.h"

#include <algorithm>

namespace caravan::algorithms {

MessagePlan chain_broadcast(int rank, int size, int64_t count, int root, int64_t segment) {
  const int64_t num_segments = count / segment + (count % segment != 0 ? 1 : 0);
  if (size == 1 || num_segments == 0) return MessagePlan();
  const int64_t position = (rank + size - root) % size;  // in the chain
  const int64_t last_place = size - 1;
  MessagePlan plan(static_cast<size_t>(last_place - 1 + num_segments));
  for (int64_t i = 0; i < num_segments; ++i) {
    const Range range{i * segment, std::min(segment, count - i * segment)};
    // Segment i leaves position p in step p + i.
    if (position > 0) plan.recv(static_cast<size_t>(position - 1 + i), (rank + size - 1) % size, range);
    if (position < last_place) plan.send(static_cast<size_t>(position + i), (rank + 1) % size, range);
  }
  return plan;
}

}  // namespace caravan::algorithms
