#include "caravan/comm/backends/shared/calls/compare_calls.h"

#include <vector>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "caravan/comm/calls/call_errors.h"

namespace caravan::shared {
namespace {

uint64_t hash(const std::vector<int64_t>& counts) noexcept {
  return XXH3_64bits(counts.data(), counts.size() * sizeof(int64_t));
}

}  // namespace

uint64_t call_signature(const Operation& operation) noexcept {
  const bool reduces =
      operation.verb == Verb::all_reduce || operation.verb == Verb::reduce_scatter || operation.verb == Verb::reduce;
  const bool moves = operation.verb != Verb::barrier;
  return static_cast<uint64_t>(operation.verb) | (reduces ? static_cast<uint64_t>(operation.op) << 8 : 0) |
         (moves ? static_cast<uint64_t>(operation.dtype) << 16 : 0) |
         static_cast<uint64_t>(static_cast<uint32_t>(operation.root)) << 32;
}

uint64_t size_signature(const Operation& operation) noexcept {
  switch (operation.verb) {
    case Verb::all_gather: return hash(operation.recv_counts);
    case Verb::reduce_scatter: return hash(operation.send_counts);
    case Verb::all_to_all: return 0;
    default: return static_cast<uint64_t>(operation.in.count);
  }
}

void throw_difference(const RankState& state, const Descriptor& own, uint64_t round) {
  std::vector<CallOf> calls;
  for (int rank = 0; rank < state.size; ++rank) {
    calls.push_back({&state.region.call(rank, round), state.region.send_counts(rank, round),
                     state.region.recv_counts(rank, round)});
  }
  std::rethrow_exception(mismatch_error(state, own, "the ranks' calls differ: " + difference(calls)));
}

}  // namespace caravan::shared
