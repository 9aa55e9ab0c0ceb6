#include "caravan/comm/gloo_errors.h"

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/comm/shared/peer_failure.h"

namespace caravan::gloo {
namespace {

ErrorText error_text(const Seat& seat, const Descriptor& call, std::string fact, std::string action) {
  return {.op = std::string(call.verb == kSplitCall ? "split" : name(static_cast<Verb>(call.verb))),
          .subject = call.what.data(),
          .fact = std::move(fact),
          .where = fmt::format("{}, operation {}: {}", seat.text(), call.sequence, to_string(call)),
          .action = std::move(action)};
}

}  // namespace

std::string Seat::text() const { return fmt::format("rank {} of {} of \"{}\"", rank, size, name); }

std::string rank_text(const Seat& seat, int rank) {
  const int world_rank = seat.world_ranks[static_cast<size_t>(rank)];
  return world_rank == rank ? fmt::format("{}", rank) : fmt::format("{} (world rank {})", rank, world_rank);
}

std::exception_ptr mismatch_error(const Seat& seat, const Descriptor& call, std::string fact) {
  return std::make_exception_ptr(
      CommError(error_text(seat, call, std::move(fact),
                           "make all ranks call the same, with the same op, dtype, sizes and root, in one order")));
}

std::exception_ptr peer_error(const Seat& seat, const Descriptor& call, std::string fact) {
  return std::make_exception_ptr(
      shared::PeerFailure(error_text(seat, call, std::move(fact), "mend what made that rank fail; it failed first")));
}

std::exception_ptr late_error(const Seat& seat, const Descriptor& call, std::span<const int> ranks,
                              std::chrono::milliseconds timeout) {
  std::string late = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) late += (i == 0 ? "" : ", ") + rank_text(seat, ranks[i]);
  return std::make_exception_ptr(CommError(error_text(
      seat, call,
      fmt::format("{} of {} did not come within {} s", late, seat.size, std::chrono::duration<double>(timeout).count()),
      "find out what keeps the missing ranks, or raise the time-out of the communicator")));
}

std::string what_went_wrong(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& exception) {
    return exception.what();
  } catch (...) {
    return "an unknown exception";
  }
}

}  // namespace caravan::gloo
