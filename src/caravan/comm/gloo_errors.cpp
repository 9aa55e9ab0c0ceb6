#include "caravan/comm/gloo_errors.h"

#include <algorithm>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/comm/shared/peer_failure.h"

namespace caravan::gloo {
namespace {

constexpr size_t kMaxNamed = 8;  // ranks whose last call is told

ErrorText error_text(const Seat& seat, const Descriptor& call, std::string fact, std::string action) {
  return {.op = std::string(call.verb == kSplitCall ? "split" : name(static_cast<Verb>(call.verb))),
          .subject = call.what.data(),
          .fact = std::move(fact),
          .where = fmt::format("{}, operation {}: {}", seat.text(), call.sequence, to_string(call)),
          .action = std::move(action)};
}

}  // namespace

std::string Seat::text() const { return fmt::format("rank {} of {} of \"{}\"", rank, size, name); }

void LastCalls::note(int world_rank, const Descriptor& call, const std::string& communicator) {
  const std::lock_guard lock(mutex_);
  entries_[static_cast<size_t>(world_rank)] = {call, communicator};
}

std::string LastCalls::text(int world_rank) const {
  const std::lock_guard lock(mutex_);
  const Entry& entry = entries_[static_cast<size_t>(world_rank)];
  if (entry.communicator.empty()) return fmt::format("rank {} has called nothing yet that this rank knows", world_rank);
  return fmt::format("rank {} last called {}, operation {} of \"{}\", as far as this rank knows", world_rank,
                     to_string(entry.call), entry.call.sequence, entry.communicator);
}

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
  ErrorText text = error_text(
      seat, call,
      fmt::format("{} of {} did not come within {} s", late, seat.size, std::chrono::duration<double>(timeout).count()),
      "find out what keeps the missing ranks, or raise the time-out of the communicator");
  for (size_t i = 0; i < ranks.size() && i < kMaxNamed && seat.check; ++i) {
    text.where += "; world " + seat.last_calls->text(seat.world_ranks[static_cast<size_t>(ranks[i])]);
  }
  return std::make_exception_ptr(CommError(std::move(text)));
}

std::exception_ptr left_error(const Seat& seat, const Descriptor& call, int rank) {
  return std::make_exception_ptr(shared::PeerFailure(
      error_text(seat, call,
                 fmt::format("rank {} of {} left: the communicator \"{}\" was destroyed there without this operation",
                             rank_text(seat, rank), seat.size, seat.name),
                 "make every rank call the same operations, and keep the communicator until the last")));
}

std::string plain_fact(std::string fact) {
  const size_t source_end = fact.find("] ");
  if (fact.starts_with('[') && source_end != std::string::npos) fact.erase(0, source_end + 2);
  for (const std::string_view advice : {"\n", ". This is typically"})
    fact.resize(std::min(fact.find(advice), fact.size()));
  return fact;
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
