#include "caravan/comm/calls/call_errors.h"

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/comm/backends/peer_failure.h"

namespace caravan {
namespace {

constexpr size_t kMaxNamed = 8;  // ranks whose last call is described

std::string rank_text(const GroupInfo& group, int rank) {
  const int world_rank = group.world_ranks[static_cast<size_t>(rank)];
  return world_rank == rank ? fmt::format("{}", rank) : fmt::format("{} (world rank {})", rank, world_rank);
}

std::string ranks_text(const GroupInfo& group, std::span<const int> ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) text += (i == 0 ? "" : ", ") + rank_text(group, ranks[i]);
  return text;
}

ErrorText error_text(const GroupInfo& group, const Descriptor& call, std::string fact, std::string action) {
  return {.op = std::string(call_name(call.verb)),
          .subject = call.what.data(),
          .fact = std::move(fact),
          .where = fmt::format("{}, operation {}: {}", group.text(), call.sequence, to_string(call)),
          .action = std::move(action)};
}

}  // namespace

std::exception_ptr mismatch_error(const GroupInfo& group, const Descriptor& call, std::string fact) {
  return std::make_exception_ptr(CommError(error_text(
      group, call, std::move(fact),
      "make all ranks call the same, with the same op, dtype, sizes, root and table of algorithms, in one order")));
}

std::exception_ptr message_error(const GroupInfo& group, const Descriptor& sent, int sender, const Descriptor& received,
                                 int receiver, bool compares_labels) {
  const bool have_labels = compares_labels && sent.what[0] != '\0' && received.what[0] != '\0';
  if (sent.dtype == received.dtype && sent.count == received.count && (!have_labels || sent.what == received.what)) {
    return nullptr;
  }
  return mismatch_error(group, group.rank == sender ? sent : received,
                        fmt::format("the calls of sender and receiver differ: rank {}: {}; rank {}: {}", sender,
                                    to_string(sent), receiver, to_string(received)));
}

std::exception_ptr peer_failure_error(const GroupInfo& group, const Descriptor& call, std::string fact,
                                      FailureScope scope) {
  return std::make_exception_ptr(
      PeerFailure(error_text(group, call, std::move(fact), "see why that rank failed: it failed first"), scope));
}

std::string failed_first_text(int rank, const std::exception_ptr& error) {
  std::string what = "an unknown exception";
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& exception) {
    what = exception.what();
  } catch (...) {  // keeps its name
  }
  return fmt::format("rank {} failed first: {}", rank, what);
}

std::exception_ptr left_error(const GroupInfo& group, const Descriptor& call, std::span<const int> ranks) {
  return std::make_exception_ptr(PeerFailure(
      error_text(group, call,
                 fmt::format("{} of {} left: the communicator \"{}\" was destroyed there without this operation",
                             ranks_text(group, ranks), group.size, group.name),
                 "make every rank call the same operations, and keep the communicator until the last one"),
      FailureScope::communicator));
}

std::exception_ptr late_error(const GroupInfo& group, const Descriptor& call, std::span<const int> ranks,
                              std::chrono::milliseconds timeout, const std::function<LateRank(int rank)>& look) {
  ErrorText text = error_text(group, call,
                              fmt::format("Timed out: {} of {} did not join within {} s", ranks_text(group, ranks),
                                          group.size, std::chrono::duration<double>(timeout).count()),
                              "find out what delays the missing ranks, or raise the time-out of the communicator");
  for (size_t i = 0; i < ranks.size() && i < kMaxNamed && look; ++i) {
    const LateRank late = look(ranks[i]);
    text.where += "; world " + late.last_call;
    if (late.stopped_process == 0) continue;
    text.fact += fmt::format("; rank {} is stalled: its process {} is stopped", rank_text(group, ranks[i]),
                             late.stopped_process);
    text.action = fmt::format("continue the stopped process before the time-out (kill -CONT {})", late.stopped_process);
  }
  return std::make_exception_ptr(CommError(std::move(text)));
}

}  // namespace caravan
