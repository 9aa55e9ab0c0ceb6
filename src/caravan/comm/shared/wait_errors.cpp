#include "caravan/comm/shared/wait_errors.h"

namespace caravan::shared {

std::exception_ptr late_error(const Seat& seat, const Descriptor& call, std::span<const int> ranks,
                              std::chrono::milliseconds timeout) {
  return caravan::late_error(seat, call, ranks, timeout,
                             [&](int world_rank) { return seat.segment->rank(world_rank).flight.last_text(world_rank); });
}

}  // namespace caravan::shared
