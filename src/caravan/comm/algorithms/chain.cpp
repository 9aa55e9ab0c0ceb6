#include "caravan/comm/algorithms/chain.h"

#include <algorithm>

namespace caravan::algorithms {

Schedule chain_broadcast(int rank, int size, int64_t count, int root, int64_t segment) {
  const int64_t num_segments = count / segment + (count % segment != 0 ? 1 : 0);
  if (size == 1 || num_segments == 0) return Schedule();
  const int64_t place = (rank + size - root) % size;  // in the chain
  const int64_t last_place = size - 1;
  Schedule schedule(static_cast<size_t>(last_place - 1 + num_segments));
  for (int64_t i = 0; i < num_segments; ++i) {
    const Range range{i * segment, std::min(segment, count - i * segment)};
    // Segment i leaves place p in step p + i.
    if (place > 0) schedule.recv(static_cast<size_t>(place - 1 + i), (rank + size - 1) % size, range);
    if (place < last_place) schedule.send(static_cast<size_t>(place + i), (rank + 1) % size, range);
  }
  return schedule;
}

}  // namespace caravan::algorithms
