#include "caravan/comm/shared/compare_calls.h"

#include <vector>

#include "caravan/comm/shared/wait_errors.h"

namespace caravan::shared {

void compare_calls(const Seat& seat, const Descriptor& own, uint64_t round) {
  std::vector<CallOf> calls;
  for (int rank = 0; rank < seat.size; ++rank) {
    calls.push_back(
        {&seat.region.call(rank, round), seat.region.send_counts(rank, round), seat.region.recv_counts(rank, round)});
  }
  if (const std::string text = difference(calls); !text.empty()) {
    std::rethrow_exception(mismatch_error(seat, own, "the ranks' calls differ: " + text));
  }
}

}  // namespace caravan::shared
