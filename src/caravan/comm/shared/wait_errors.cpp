#include "caravan/comm/shared/wait_errors.h"

#include <algorithm>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/comm/descriptor.h"
#include "caravan/comm/shared/peer_failure.h"

namespace caravan::shared {
namespace {

constexpr size_t kMaxNamed = 8;  // ranks whose last call is told

std::string rank_text(const Seat& seat, int rank) {
  const int world_rank = seat.world_ranks[static_cast<size_t>(rank)];
  return world_rank == rank ? fmt::format("{}", rank) : fmt::format("{} (world rank {})", rank, world_rank);
}

std::string ranks_text(const Seat& seat, std::span<const int> ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) text += (i == 0 ? "" : ", ") + rank_text(seat, ranks[i]);
  return text;
}

ErrorText error_text(const Seat& seat, const Descriptor& call, std::string fact, std::string action) {
  return {.op = std::string(call.verb == kSplitCall ? "split" : name(static_cast<Verb>(call.verb))),
          .subject = call.what.data(),
          .fact = std::move(fact),
          .where = fmt::format("{}, operation {}: {}", seat.text(), call.sequence, to_string(call)),
          .action = std::move(action)};
}

struct Stalled {
  std::string fact;
  std::string action = "find out what keeps the missing ranks, or raise the time-out of the communicator";
};

/// Those of `ranks` whose processes are stopped: they are not lost, and nothing keeps them but that.
Stalled stalled_among(const Seat& seat, std::span<const int> ranks, PeerWatch* watch) {
  Stalled result;
  if (watch == nullptr) return result;
  for (const StoppedPeer& peer : watch->stopped()) {
    const auto is_peer = [&](int rank) { return seat.world_ranks[static_cast<size_t>(rank)] == peer.world_rank; };
    const auto rank = std::ranges::find_if(ranks, is_peer);
    if (rank == ranks.end()) continue;
    result.fact += fmt::format("; rank {} is stalled: its process {} is stopped", rank_text(seat, *rank), peer.number);
    result.action = fmt::format("let the stopped process go on before the time-out (kill -CONT {})", peer.number);
  }
  return result;
}

}  // namespace

std::string Seat::text() const { return fmt::format("rank {} of {} of \"{}\"", rank, size, name); }

std::exception_ptr mismatch_error(const Seat& seat, const Descriptor& call, std::string fact) {
  return std::make_exception_ptr(
      CommError(error_text(seat, call, std::move(fact),
                           "make all ranks call the same, with the same op, dtype, sizes and root, in one order")));
}

std::exception_ptr peer_failure_error(const Seat& seat, const Descriptor& call, std::string text) {
  return std::make_exception_ptr(
      PeerFailure(error_text(seat, call, std::move(text), "mend what made that rank fail; it failed first")));
}

std::exception_ptr left_error(const Seat& seat, const Descriptor& call, std::span<const int> ranks) {
  return std::make_exception_ptr(PeerFailure(
      error_text(seat, call,
                 fmt::format("{} of {} left: the communicator \"{}\" was destroyed there without this operation",
                             ranks_text(seat, ranks), seat.size, seat.name),
                 "make every rank call the same operations, and keep the communicator until the last")));
}

std::exception_ptr late_error(const Seat& seat, const Descriptor& call, std::span<const int> ranks,
                              std::chrono::milliseconds timeout, PeerWatch* watch) {
  const Stalled stalled = stalled_among(seat, ranks, watch);
  ErrorText text = error_text(seat, call,
                              fmt::format("{} of {} did not come within {} s{}", ranks_text(seat, ranks), seat.size,
                                          std::chrono::duration<double>(timeout).count(), stalled.fact),
                              stalled.action);
  for (size_t i = 0; i < ranks.size() && i < kMaxNamed; ++i) {
    const int world_rank = seat.world_ranks[static_cast<size_t>(ranks[i])];
    text.where += "; world " + seat.segment->rank(world_rank).activity.text(world_rank);
  }
  return std::make_exception_ptr(CommError(std::move(text)));
}

}  // namespace caravan::shared
