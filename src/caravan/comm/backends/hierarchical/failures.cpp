#include <algorithm>
#include <array>
#include <thread>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/comm/backends/hierarchical/hierarchical_communicator.h"
#include "caravan/comm/backends/peer_failure.h"
#include "caravan/comm/calls/call_errors.h"

// How a HierarchicalCommunicator fails. The error of a level numbers the ranks as that level does, so it is used only
// if no rank has published more: a rank that fails, aborts or leaves publishes this before it ends its levels.
namespace caravan::hierarchical {
namespace {

using std::chrono::milliseconds;

// Time from the error of a level until the failed rank publishes the reason. It may be slow: its thread must first see
// the error itself. If the level's whole world has ended, the reason, if any, has already been published.
constexpr milliseconds kReasonTimeout{2000};
constexpr milliseconds kWorldReasonTimeout{60};
constexpr milliseconds kReasonPoll{5};
constexpr int kMaxSilentTimeouts = 4;

}  // namespace

std::exception_ptr HierarchicalCommunicator::error_of(const Descriptor& call,
                                                      const std::exception_ptr& cause) noexcept {
  if (is_dead()) return first_error();
  const auto publish = [&](const std::exception_ptr& error) {
    engine_->notices().publish_failure(scope_, failed_first_text(rank(), error));
    return error;
  };
  try {
    std::rethrow_exception(cause);
  } catch (const CallsDiffer& differ) {
    return differ.error;  // every rank sees it
  } catch (const PeerFailure& failure) {
    return error_of_peer_failure(call, failure);
  } catch (const CommError& error) {
    const auto named = error_of_messages(call, error);
    // Only two ranks see a mismatch of a message; the receiver tells the others.
    return call.verb == static_cast<uint8_t>(Verb::send) ? named : publish(named);
  } catch (...) {
    return publish(cause);
  }
}

std::exception_ptr HierarchicalCommunicator::error_of_peer_failure(const Descriptor& call, const PeerFailure& failure) {
  const bool ends_world = failure.scope() == FailureScope::world;
  const auto deadline =
      Clock::now() + std::min(engine_->options().timeout, ends_world ? kWorldReasonTimeout : kReasonTimeout);
  do {
    if (const auto known = known_error(call)) return known;
    if (is_dead()) return first_error();
    std::this_thread::sleep_for(kReasonPoll);
  } while (Clock::now() < deadline);
  const std::string scope = ends_world ? messages::Notices::kWorld : scope_;
  const std::string fact = engine_->notices().publish_failure(scope, failure.text().fact);
  if (ends_world) engine_->close(fact);
  return peer_failure_error(group_, call, fact, failure.scope());
}

std::exception_ptr HierarchicalCommunicator::error_of_messages(const Descriptor& call, const CommError& cause) const {
  if (!is_point_to_point(call) || levels_.direct() != nullptr) return std::current_exception();
  const auto peer = static_cast<size_t>(call.root);
  if (levels_.topology.host[peer] != levels_.host()) return std::current_exception();
  if (levels_.topology.local_rank[peer] == call.root && levels_.local_rank() == rank()) return std::current_exception();
  return mismatch_error(group_, call,
                        fmt::format("between the ranks {} and {}, which are {} and {} on their host: {}", rank(), peer,
                                    levels_.local_rank(), levels_.topology.local_rank[peer], cause.text().fact));
}

std::exception_ptr HierarchicalCommunicator::known_error(const Descriptor& call) {
  if (std::string fact = engine_->notices().failure(scope_); !fact.empty()) {
    return peer_failure_error(group_, call, std::move(fact), FailureScope::communicator);
  }
  if (const std::string fact = engine_->notices().failure(messages::Notices::kWorld); !fact.empty()) {
    engine_->close(fact);  // ends this communicator, too
    return first_error();
  }
  const int departed = engine_->notices().find_departed(scope_, group_, counts_, call);
  return departed >= 0 ? left_error(group_, call, std::array{departed}) : nullptr;
}

void HierarchicalCommunicator::check_notices() noexcept {
  const HierarchicalTask* task = first();
  if (is_dead() || task == nullptr) return;
  const auto known = known_error(task->descriptor());
  if (known == nullptr || is_dead()) return;
  // What the failed rank had sent before is visible by now: complete what can be completed.
  if (!advance()) end(known);
}

void HierarchicalCommunicator::fail_with_peer_error(const std::string& fact) noexcept {
  if (is_dead()) return;
  const HierarchicalTask* task = first();
  const std::string own = size() > 1 ? engine_->notices().failure(scope_) : "";  // closer to the cause
  end(peer_failure_error(group_, task != nullptr ? task->descriptor() : Descriptor{}, own.empty() ? fact : own,
                         FailureScope::world));
}

std::vector<int> HierarchicalCommunicator::find_missing(const Descriptor& call) {
  std::vector<int> asked;  // by world rank
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank() && (!is_point_to_point(call) || peer == call.root))
      asked.push_back(group_.world_ranks[static_cast<size_t>(peer)]);
  }
  const std::vector<int> silent = engine_->find_late(
      scope_, counts_, asked, [&](const std::string& answer) { return counts_.has_issued(answer, call, rank()); });
  std::vector<int> missing;
  for (const int world_rank : silent) {
    missing.push_back(static_cast<int>(std::ranges::find(group_.world_ranks, world_rank) - group_.world_ranks.begin()));
  }
  return missing;
}

void HierarchicalCommunicator::time_out(const Operation& operation) noexcept {
  const Descriptor call = task_of(operation).descriptor();
  const std::vector<int> missing = find_missing(call);
  if (operation.complete || is_dead()) return;
  // There is much to move, or a late rank has arrived. This must not continue forever.
  if (missing.empty() && ++num_silent_timeouts_ < kMaxSilentTimeouts) return;
  const std::chrono::milliseconds timeout = engine_->options().timeout;
  if (missing.empty()) {
    return end(error_of(
        call, std::make_exception_ptr(CommError(
                  {.op = std::string(call_name(call.verb)),
                   .subject = call.what.data(),
                   .fact = fmt::format("all ranks joined, but nothing moved for {} times {} s", kMaxSilentTimeouts,
                                       std::chrono::duration<double>(timeout).count()),
                   .where = fmt::format("{}, operation {}: {}", group_.text(), call.sequence, to_string(call)),
                   .action = "check that the hosts reach each other, or raise the time-out of the communicator"}))));
  }
  const auto error = late_error(group_, call, missing, timeout, [this](int late) { return look_for(late); });
  engine_->notices().publish_failure(scope_, failed_first_text(rank(), error));
  end(error);
}

LateRank HierarchicalCommunicator::look_for(int late) const {
  const auto at = static_cast<size_t>(late);
  if (levels_.is_local(late)) return dynamic_cast<Level&>(*levels_.local).look_for(levels_.topology.local_rank[at]);
  if (levels_.direct() != nullptr) return dynamic_cast<Level&>(*levels_.direct()).look_for(late);
  return {engine_->last_calls().text(group_.world_ranks[at])};
}

void HierarchicalCommunicator::end(const std::exception_ptr& error) noexcept {
  if (!keep_first_error(error)) return;
  for (const auto& task : direct_) task->settle();
  std::vector<std::shared_ptr<HierarchicalTask>> tasks(collectives_.begin(), collectives_.end());
  tasks.insert(tasks.end(), direct_.begin(), direct_.end());
  collectives_.clear();
  direct_.clear();
  // Ranks of this host may wait in the local level only, so it must end. A level of messages with nothing pending stays
  // alive: a peer may still be receiving the last message of this rank.
  const bool is_pending = std::ranges::any_of(tasks, [](const auto& task) { return task->is_pending(); });
  for (Level* level : levels_.all()) {
    if (is_pending || level == &dynamic_cast<Level&>(*levels_.local)) level->end(first_error());
  }
  for (const auto& task : tasks) task->drain();
  for (const auto& task : tasks) {
    if (!task->operation()->complete) task->operation()->set_complete(task->finished() ? nullptr : first_error());
  }
}

}  // namespace caravan::hierarchical
