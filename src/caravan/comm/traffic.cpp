#include "caravan/comm/traffic.h"

#include <numeric>

namespace caravan {

int64_t Traffic::total_calls() const noexcept { return std::accumulate(calls.begin(), calls.end(), int64_t{0}); }
int64_t Traffic::total_bytes() const noexcept { return std::accumulate(bytes.begin(), bytes.end(), int64_t{0}); }

int64_t wire_bytes(Verb verb, int rank, int size, int64_t input_bytes, int64_t own_bytes, int root) noexcept {
  if (size == 1) return 0;
  switch (verb) {
    case Verb::all_reduce:
      // Rounded down; in two parts, because 2(n-1)x may not fit into 64 bits.
      return 2 * (size - 1) * (input_bytes / size) + 2 * (size - 1) * (input_bytes % size) / size;
    case Verb::all_gather: return input_bytes * (size - 1);
    case Verb::reduce_scatter:
    case Verb::all_to_all: return input_bytes - own_bytes;
    case Verb::broadcast:
      return rank == (root + size - 1) % size ? 0 : input_bytes;  // the chain starts at the root and ends before it
    case Verb::reduce: return rank == root ? 0 : input_bytes;
    case Verb::send: return input_bytes;
    case Verb::recv:
    case Verb::barrier: return 0;
  }
  return 0;
}

}  // namespace caravan
