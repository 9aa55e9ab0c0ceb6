#include "caravan/comm/measure/rates.h"

namespace caravan::measure {

double bus_factor(Verb verb, int num_ranks) noexcept {
  const double n = num_ranks;
  switch (verb) {
    case Verb::all_reduce: return 2 * (n - 1) / n;
    case Verb::all_gather:
    case Verb::reduce_scatter:
    case Verb::all_to_all: return (n - 1) / n;
    case Verb::broadcast:
    case Verb::reduce:
    case Verb::send:
    case Verb::recv: return 1;
    case Verb::barrier: return 0;
  }
  return 0;
}

int64_t memory_bytes(Verb verb, int num_ranks, int64_t bytes) noexcept {
  const int64_t n = num_ranks;
  switch (verb) {
    case Verb::all_reduce:
    case Verb::all_to_all:
    case Verb::send: return 2 * n * bytes;
    case Verb::all_gather:
    case Verb::broadcast: return 2 * (n - 1) * bytes;
    case Verb::reduce_scatter:
    case Verb::reduce: return (n + 1) * bytes;
    case Verb::recv: return n / 2 * 2 * bytes;
    case Verb::barrier: return 0;
  }
  return 0;
}

}  // namespace caravan::measure
