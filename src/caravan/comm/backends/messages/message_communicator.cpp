#include "caravan/comm/backends/messages/message_communicator.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/trace/path_log.h"
#include "caravan/comm/algorithms/problem.h"
#include "caravan/comm/backends/messages/message_collective.h"
#include "caravan/comm/backends/messages/point_to_point.h"
#include "caravan/comm/backends/messages/split.h"
#include "caravan/comm/calls/call_errors.h"
#include "caravan/comm/members.h"

namespace caravan::messages {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kPatience{20};  // after the time-out, for messages sent long before

}  // namespace

std::shared_ptr<MessageCommunicator> MessageCommunicator::make_world(std::shared_ptr<MessageEngine> engine) {
  Group group(GroupInfo::of_world(engine->rank(), engine->size()));
  group.transport = engine->transport();
  group.check = engine->options().check;
  group.last_calls = std::make_shared<LastCalls>(group.size);
  return std::make_shared<MessageCommunicator>(std::move(engine), std::move(group));
}

MessageCommunicator::MessageCommunicator(std::shared_ptr<MessageEngine> engine, Group group, Lineage lineage)
    : Level(group, lineage),
      engine_(std::move(engine)),
      group_(std::move(group)),
      scope_(fmt::format("{:x}", lineage.identity)),
      algorithms_(engine_->algorithms()),
      counts_(group_.size),
      sends_(static_cast<size_t>(group_.size)),
      recvs_(static_cast<size_t>(group_.size)) {
  engine_->add(*this);
}

MessageCommunicator::~MessageCommunicator() {
  shut_down();
  collect();
  leave();
  engine_->remove(*this);
}

void MessageCommunicator::leave() noexcept {
  if (engine_->has_failed()) return;
  if (size() > 1) engine_->notices().publish_departure(scope_, group_, is_dead() ? nullptr : &counts_);
  // If the ranks compare their calls, what completed here has been received there, or is about to be: the tags are
  // free. Otherwise a message may still wait for a recv that never comes.
  if (!is_dead() && group_.check && group_.id != TagIds::kWorld) engine_->ids().release(group_.id);
}

size_t MessageCommunicator::num_outstanding() const noexcept {
  size_t sum = 0;
  for (TaskThread* thread : threads()) sum += thread->size();
  return sum;
}

void MessageCommunicator::complete_outstanding() noexcept {
  for (TaskThread* thread : threads()) {
    wait(*thread, [&] { return is_dead() || thread->head() == nullptr; });
  }
}

void MessageCommunicator::abandon(const std::exception_ptr& error, const std::string& reason) noexcept {
  end(error);
  engine_->notices().publish_failure(scope_, reason);
}

void MessageCommunicator::end_world(std::string_view fact) noexcept {
  engine_->close(engine_->publish_world_failure(std::string(fact)));
}

std::vector<TaskThread*> MessageCommunicator::threads() const {
  std::vector<TaskThread*> threads;
  if (collectives_ != nullptr) threads.push_back(collectives_.get());
  for (const auto* list : {&sends_, &recvs_}) {
    for (const auto& thread : *list) {
      if (thread != nullptr) threads.push_back(thread.get());
    }
  }
  return threads;
}

std::unique_ptr<TaskThread>& MessageCommunicator::thread_of(const Operation& operation) {
  if (operation.verb == Verb::send) return sends_[static_cast<size_t>(operation.peer)];
  if (operation.verb == Verb::recv) return recvs_[static_cast<size_t>(operation.peer)];
  return collectives_;
}

void MessageCommunicator::enqueue(std::unique_ptr<TaskThread>& thread, const std::shared_ptr<MessageTask>& task) {
  engine_->collect();
  throw_if_dead();
  if (thread == nullptr) thread = std::make_unique<TaskThread>(engine_->completions());
  thread->push(task);
  counts_.count(task->call());
}

void MessageCommunicator::start(const std::shared_ptr<Operation>& operation) {
  if (operation->verb == Verb::send) {
    const auto send = std::make_shared<SendTask>(group_, operation);
    enqueue(thread_of(*operation), send);
    if (send->is_copied()) operation->set_complete();
  } else if (operation->verb == Verb::recv) {
    enqueue(thread_of(*operation), std::make_shared<RecvTask>(group_, operation));
  } else {
    const algorithms::Choice choice = choose(*operation);
    if (operation->verb != Verb::barrier && PathLog::current() != nullptr) {
      operation->take_path(algorithms::path_of(backend(), operation->verb, choice.algorithm));
    }
    enqueue(thread_of(*operation), std::make_shared<MessageCollective>(group_, operation, choice));
  }
}

algorithms::Choice MessageCommunicator::choose(const Operation& operation) const {
  if (operation.verb == Verb::barrier) return {};
  return algorithms_->choose(backend(), operation.verb, size(), algorithms::whole_bytes(operation));
}

const algorithms::SelectionTable* MessageCommunicator::selection() const noexcept { return algorithms_.get(); }

bool MessageCommunicator::select(std::shared_ptr<const algorithms::SelectionTable> table) {
  if (table == nullptr) table = engine_->algorithms();
  algorithms_ = std::move(table);
  return true;
}

void MessageCommunicator::finish(Operation& operation) {
  const auto is_done = [&] { return operation.complete; };
  if (!is_done()) wait(*thread_of(operation), is_done);
  if (operation.error != nullptr) std::rethrow_exception(operation.error);
}

void MessageCommunicator::progress() {
  engine_->collect();
  if (is_dead() || !failure_check_.is_due(Clock::now())) return;
  for (TaskThread* thread : threads()) {
    if (thread->head() != nullptr && failed_elsewhere(*thread)) return;
  }
}

void MessageCommunicator::wait(TaskThread& thread, const std::function<bool()>& is_done) {
  const std::chrono::milliseconds timeout = engine_->options().timeout;
  StallTimer stall(thread.num_moves());
  Periodic failure_check(kStoreCheckInterval, stall.since() + kStoreCheckInterval);
  for (;;) {
    const uint64_t seen = engine_->completions().count();
    engine_->collect();
    const SideWork side_work = is_done() ? SideWork::none : engine_->drive_side_work();
    if (is_done()) return;
    if (side_work == SideWork::moved) continue;
    const Clock::time_point wake = std::min(stall.since() + timeout, failure_check.next());
    engine_->completions().wait(seen, side_work == SideWork::none ? wake : std::min(wake, Clock::now() + kNap));
    const Clock::time_point now = Clock::now();
    stall.restart_if_moved(thread.num_moves(), now);
    if (failure_check.is_due(now) && failed_elsewhere(thread)) continue;
    if (now - stall.since() >= timeout) thread.interrupt(kPatience);
  }
}

void MessageCommunicator::collect() noexcept {
  for (TaskThread* thread : threads()) collect(*thread);
}

void MessageCommunicator::collect(TaskThread& thread) noexcept {
  for (const std::shared_ptr<MessageTask>& task : thread.take_finished()) {
    if (task->error != nullptr) end(is_dead() ? first_error() : error_of(*task));
    if (!task->operation()->complete) task->operation()->set_complete(task->error != nullptr ? first_error() : nullptr);
  }
}

std::exception_ptr MessageCommunicator::error_of(const MessageTask& task) noexcept {
  try {
    std::rethrow_exception(task.error);
  } catch (const PeerLost& lost) {
    return lost_error(task, lost);
  } catch (const PeersMissing& missing) {
    const auto error = late_error(task.call(), missing.peers);
    engine_->notices().publish_failure(scope_, failed_first_text(rank(), error));
    return error;
  } catch (...) {
    // All ranks of a collective see that their calls differ. Only two ranks see it for a message; the receiver tells
    // the others.
    if (task.call().verb == static_cast<uint8_t>(Verb::recv)) {
      engine_->notices().publish_failure(scope_, failed_first_text(rank(), task.error));
    }
    return task.error;
  }
}

std::exception_ptr MessageCommunicator::late_error(const Descriptor& call, std::span<const int> ranks) const {
  std::function<LateRank(int)> look;  // without the comparison of calls, nothing is known
  if (group_.check) look = [this](int rank) { return look_for(rank); };
  return caravan::late_error(group_, call, ranks, engine_->options().timeout, look);
}

void MessageCommunicator::pause(const std::function<bool()>& is_done, std::chrono::microseconds at_most) {
  const uint64_t seen = engine_->completions().count();
  if (!is_done()) engine_->completions().wait(seen, Clock::now() + at_most);
}

LateRank MessageCommunicator::look_for(int rank) const {
  return {group_.last_calls->text(group_.world_ranks[static_cast<size_t>(rank)])};
}

std::exception_ptr MessageCommunicator::lost_error(const MessageTask& task, const PeerLost& lost) {
  // An aborting rank publishes the reason before it closes its connections.
  const std::string reason = engine_->notices().failure(scope_);
  if (!reason.empty()) return peer_failure_error(group_, task.call(), reason, FailureScope::communicator);
  const int departed = engine_->notices().find_departed(scope_, group_, counts_, task.call());
  if (departed >= 0) return left_error(group_, task.call(), std::array{departed});
  const int world_rank = group_.world_ranks[static_cast<size_t>(lost.peer)];
  return peer_failure_error(
      group_, task.call(),
      engine_->publish_world_failure(fmt::format("rank {} of the world is lost: {}", world_rank, lost.fact)),
      FailureScope::world);
}

bool MessageCommunicator::failed_elsewhere(TaskThread& thread) {
  const std::shared_ptr<MessageTask> task = thread.head();
  const Descriptor call = task != nullptr ? task->call() : Descriptor{};
  for (const FailureScope reach : {FailureScope::world, FailureScope::communicator}) {
    std::string fact = engine_->notices().failure(reach == FailureScope::world ? Notices::kWorld : scope_);
    if (fact.empty()) continue;
    end(peer_failure_error(group_, call, std::move(fact), reach));
    return true;
  }
  const int departed = task != nullptr ? engine_->notices().find_departed(scope_, group_, counts_, call) : -1;
  if (departed >= 0) end(left_error(group_, call, std::array{departed}));
  return is_dead();
}

void MessageCommunicator::fail_with_peer_error(const std::string& fact) noexcept {
  const std::vector<TaskThread*> all = threads();
  const auto busy = std::ranges::find_if(all, [](TaskThread* thread) { return thread->head() != nullptr; });
  const std::shared_ptr<MessageTask> task = busy != all.end() ? (*busy)->head() : nullptr;
  const std::string own = !is_dead() ? engine_->notices().failure(scope_) : "";  // closer to the cause
  end(peer_failure_error(group_, task != nullptr ? task->call() : Descriptor{}, own.empty() ? fact : own,
                         FailureScope::world));
  group_.transport.reset();
}

void MessageCommunicator::end(const std::exception_ptr& error) noexcept {
  if (!keep_first_error(error)) return;
  engine_->note_failure();
  for (TaskThread* thread : threads()) {
    for (const std::shared_ptr<MessageTask>& task : thread->stop()) {
      if (!task->operation()->complete) task->operation()->set_complete(first_error());
    }
    collect(*thread);
  }
}

std::shared_ptr<Communicator> MessageCommunicator::split(std::span<const int> members, std::string name) {
  Group part(group_.part(members, check_members(members, *this, name), name));
  part.transport = group_.transport;
  part.check = group_.check;
  part.last_calls = group_.last_calls;
  const uint64_t sequence = take_sequence();
  if (size() > 1) {
    const auto result = std::make_shared<SplitResult>();
    const auto task = std::make_shared<SplitTask>(group_, members, part.name, engine_->ids(), sequence, result);
    task->operation()->flight = &recorder()->log();
    task->operation()->flight_number = record(task->call());
    enqueue(collectives_, task);
    Communicator::wait(*task->operation());
    check_overlap(result->overlap, group_, part.name);
    part.id = result->id;
    engine_->ids().take(part.id);
  }
  auto child =
      std::make_shared<MessageCommunicator>(engine_, std::move(part), child_lineage(sequence, members.front()));
  child->algorithms_ = algorithms_;
  return child;
}

}  // namespace caravan::messages
