#include <algorithm>
#include <array>
#include <thread>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/comm/call_errors.h"
#include "caravan/comm/hierarchical/hierarchical_communicator.h"
#include "caravan/comm/peer_failure.h"

// How a HierarchicalCommunicator ends. What a level throws is told in that level's words only where nobody has told
// more: a rank that fails, gives up or leaves says so in the store before it ends its levels.
namespace caravan::hierarchical {
namespace {

constexpr int kGraceLooks = 12;  // of 5 ms: from the end of a level to its reason in the store
constexpr int kMostSilent = 4;

bool is_mail(const Descriptor& call) {
  return call.verb == static_cast<uint8_t>(Verb::send) || call.verb == static_cast<uint8_t>(Verb::recv);
}

}  // namespace

std::exception_ptr HierarchicalCommunicator::error_of(const Descriptor& call,
                                                      const std::exception_ptr& cause) noexcept {
  if (error_ != nullptr) return error_;
  const auto tell = [&](const std::exception_ptr& error) {
    member_->board().publish_failure(scope_, failed_first_text(rank(), error));
    return error;
  };
  try {
    std::rethrow_exception(cause);
  } catch (const CallsDiffer& differ) {
    return differ.error;  // every rank sees it
  } catch (const PeerFailure& failure) {
    for (int i = 0; i < kGraceLooks; ++i) {
      if (const auto known = known_error(call)) return known;
      if (error_ != nullptr) return error_;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    const std::string fact = member_->board().publish_failure(messages::Member::kWorld, failure.text().fact);
    member_->close(fact);
    return peer_failure_error(seat_, call, fact);
  } catch (const CommError& error) {
    const auto named = error_of_messages(call, error);
    // Of a message two ranks see it, and one of them tells the others.
    return call.verb == static_cast<uint8_t>(Verb::send) ? named : tell(named);
  } catch (...) {
    return tell(cause);
  }
}

std::exception_ptr HierarchicalCommunicator::error_of_messages(const Descriptor& call, const CommError& cause) const {
  if (!is_mail(call) || levels_.direct() != nullptr) return std::current_exception();
  const auto peer = static_cast<size_t>(call.root);
  if (levels_.topology.host[peer] != levels_.host()) return std::current_exception();
  if (levels_.topology.place[peer] == call.root && levels_.place() == rank()) return std::current_exception();
  return mismatch_error(seat_, call,
                        fmt::format("between the ranks {} and {}, which are {} and {} on their host: {}", rank(), peer,
                                    levels_.place(), levels_.topology.place[peer], cause.text().fact));
}

std::exception_ptr HierarchicalCommunicator::known_error(const Descriptor& call) {
  if (std::string fact = member_->board().failure(scope_); !fact.empty()) {
    return peer_failure_error(seat_, call, std::move(fact));
  }
  if (const std::string fact = member_->board().failure(messages::Member::kWorld); !fact.empty()) {
    member_->close(fact);  // ends this communicator, too
    return error_;
  }
  const int left = rank_that_left(call);
  return left >= 0 ? left_error(seat_, call, std::array{left}) : nullptr;
}

int HierarchicalCommunicator::rank_that_left(const Descriptor& call) {
  if (!member_->board().has_somebody_left(scope_)) return -1;
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank() || (is_mail(call) && peer != call.root)) continue;
    const std::string counts = member_->board().leave(scope_, peer);
    if (!counts.empty() && !calls_made_.has(counts, call, rank())) return peer;
  }
  return -1;
}

void HierarchicalCommunicator::look_elsewhere() noexcept {
  const Task* task = first();
  if (error_ != nullptr || task == nullptr) return;
  const auto known = known_error(task->descriptor());
  if (known == nullptr || error_ != nullptr) return;
  // What had come before can be seen by now: what can still be completed is.
  if (!advance()) fail(known);
}

void HierarchicalCommunicator::fail_with_peer_error(const std::string& fact) noexcept {
  if (error_ != nullptr) return;
  const Task* task = first();
  const std::string own = size() > 1 ? member_->board().failure(scope_) : "";  // is nearer to the cause
  fail(peer_failure_error(seat_, task != nullptr ? task->descriptor() : Descriptor{}, own.empty() ? fact : own));
}

std::vector<int> HierarchicalCommunicator::find_missing(const Descriptor& call) {
  std::vector<int> asked;
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank() && (!is_mail(call) || peer == call.root))
      asked.push_back(seat_.world_ranks[static_cast<size_t>(peer)]);
  }
  const std::vector<int> silent = member_->ask(scope_, calls_made_.text(), asked, [&](const std::string& answer) {
    return calls_made_.has(answer, call, rank());
  });
  std::vector<int> missing;
  for (const int world_rank : silent) {
    missing.push_back(static_cast<int>(std::ranges::find(seat_.world_ranks, world_rank) - seat_.world_ranks.begin()));
  }
  return missing;
}

void HierarchicalCommunicator::time_out(const Operation& operation) noexcept {
  const Descriptor call = task_of(operation).descriptor();
  const std::vector<int> missing = find_missing(call);
  if (operation.complete || error_ != nullptr) return;
  // Much to move, or somebody was late and has come; but not for ever.
  if (missing.empty() && ++num_silent_ < kMostSilent) return;
  const std::chrono::milliseconds timeout = member_->options().timeout;
  if (missing.empty()) {
    return fail(error_of(
        call, std::make_exception_ptr(CommError(
                  {.op = std::string(call_name(call.verb)),
                   .subject = call.what.data(),
                   .fact = fmt::format("all ranks came, and nothing moved for {} times {} s", kMostSilent,
                                       std::chrono::duration<double>(timeout).count()),
                   .where = fmt::format("{}, operation {}: {}", seat_.text(), call.sequence, to_string(call)),
                   .action = "see that the hosts reach each other, or raise the time-out of the communicator"}))));
  }
  const auto error = late_error(seat_, call, missing, timeout, [this](int late) { return look_for(late); });
  member_->board().publish_failure(scope_, failed_first_text(rank(), error));
  fail(error);
}

LateRank HierarchicalCommunicator::look_for(int late) const {
  const auto at = static_cast<size_t>(late);
  if (levels_.is_mate(late)) return dynamic_cast<Level&>(*levels_.inner).look_for(levels_.topology.place[at]);
  if (levels_.direct() != nullptr) return dynamic_cast<Level&>(*levels_.direct()).look_for(late);
  return {member_->last_calls().text(seat_.world_ranks[at])};
}

void HierarchicalCommunicator::fail(const std::exception_ptr& error) noexcept {
  if (error_ != nullptr) return;
  error_ = error;
  for (const auto& task : direct_) task->settle();
  std::vector<std::shared_ptr<Task>> tasks(collectives_.begin(), collectives_.end());
  tasks.insert(tasks.end(), direct_.begin(), direct_.end());
  collectives_.clear();
  direct_.clear();
  // Ranks of this host may wait in their level alone, where nothing else tells them. A level of messages that carries
  // nothing stays as it is: a peer may still be taking the last of what this rank gave.
  const bool is_pending = std::ranges::any_of(tasks, [](const auto& task) { return task->is_pending(); });
  for (Level* level : levels_.all()) {
    if (is_pending || level == &dynamic_cast<Level&>(*levels_.inner)) level->end(error_);
  }
  for (const auto& task : tasks) task->drain();
  for (const auto& task : tasks) {
    if (!task->operation()->complete) task->operation()->set_complete(task->finished() ? nullptr : error_);
  }
}

}  // namespace caravan::hierarchical
