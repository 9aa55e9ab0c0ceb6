#include "caravan/comm/backends/shared/shared_communicator.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/comm/backends/peer_failure.h"
#include "caravan/comm/backends/relax.h"
#include "caravan/comm/backends/shared/calls/mail.h"
#include "caravan/comm/backends/shared/calls/shared_collective.h"
#include "caravan/comm/backends/shared/memory/allocate.h"
#include "caravan/comm/backends/shared/peers/wait_errors.h"
#include "caravan/comm/backends/shared/split.h"
#include "caravan/comm/calls/call_errors.h"
#include "caravan/comm/calls/descriptor.h"
#include "caravan/comm/members.h"

namespace caravan::shared {
namespace {

constexpr int kEagerSpins = 100;  // polls without a pause, about as long as a cache line takes between cores

/// The peer's text if `error` only repeats a failure that a peer has published.
std::optional<std::string> echo_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const PeerFailure& failure) {
    return failure.text().fact;
  } catch (...) {
    return std::nullopt;
  }
}

std::shared_ptr<FlightRecorder> recorder_in(const RankState& state) {
  const auto rank = state.segment_ranks[static_cast<size_t>(state.rank)];
  return std::make_shared<FlightRecorder>(state.segment->rank(rank).flight, state.segment);
}

}  // namespace

std::shared_ptr<Communicator> SharedCommunicator::make_world(std::shared_ptr<SharedEngine> engine) {
  RankState state;
  state.segment = engine->segment();
  state.arena = engine->arena();
  state.compares_labels = engine->options().check;
  static_cast<GroupInfo&>(state) = GroupInfo::of_world(engine->world_rank(), state.segment->num_ranks());
  state.segment_ranks = std::exchange(state.world_ranks, engine->world_ranks());
  Lineage lineage;
  if (!engine->is_part()) lineage.recorder = recorder_in(state);
  const int slot = state.size == 1 ? -1 : 0;
  return std::make_shared<SharedCommunicator>(std::move(engine), std::move(state), slot, std::move(lineage));
}

std::shared_ptr<FlightRecorder> SharedCommunicator::make_shared_recorder() const { return recorder_in(state_); }

LateRank SharedCommunicator::look_for(int rank) const { return shared::look_for(state_, rank, engine_->watch()); }

SharedCommunicator::SharedCommunicator(std::shared_ptr<SharedEngine> engine, RankState state, int slot, Lineage lineage)
    : Level(state, std::move(lineage)),
      engine_(std::move(engine)),
      state_(std::move(state)),
      slot_(slot),
      sends_(static_cast<size_t>(state_.size)),
      recvs_(static_cast<size_t>(state_.size)) {
  if (slot_ >= 0) state_.region = Region(state_.segment->slot(slot_), state_.size);
  engine_->add(*this);
}

SharedCommunicator::~SharedCommunicator() {
  shut_down();
  engine_->remove(*this);
  leave();
}

void SharedCommunicator::complete_outstanding() noexcept {
  while (outstanding_ > 0) {
    const TaskQueue& queue = first_queue();
    const std::shared_ptr<Operation> operation = queue.head_operation();  // the caller may have dropped its handle
    engine_->wait(*this, queue, *operation);
  }
}

void SharedCommunicator::abandon(const std::exception_ptr& error, const std::string& /*reason*/) noexcept {
  end_all(error);  // peers see that this rank has left
}

void SharedCommunicator::leave() noexcept {
  if (slot_ < 0) return;
  state_.region.left(rank()).store(1, std::memory_order_seq_cst);
  state_.ring_others();
  const uint32_t before = state_.region.control().num_left.fetch_add(1, std::memory_order_acq_rel);
  if (before + 1 == static_cast<uint32_t>(size())) state_.segment->release_slot(slot_);
}

const TaskQueue& SharedCommunicator::first_queue() const noexcept {
  for (const auto* queues : {&sends_, &recvs_}) {
    for (const TaskQueue& queue : *queues) {
      if (!queue.empty()) return queue;
    }
  }
  return collectives_;
}

TaskQueue& SharedCommunicator::queue_of(const Operation& operation) noexcept {
  if (operation.verb == Verb::send) return sends_[static_cast<size_t>(operation.peer)];
  if (operation.verb == Verb::recv) return recvs_[static_cast<size_t>(operation.peer)];
  return collectives_;
}

bool SharedCommunicator::uses(const std::byte* memory, size_t bytes) const {
  if (outstanding_ == 0) return false;
  const auto is_in = [&](const void* data) {
    const auto* begin = static_cast<const std::byte*>(data);
    return begin >= memory && begin < memory + bytes;  // a buffer is in one block
  };
  const auto is_its = [&](const Operation& operation) { return is_in(operation.in.data) || is_in(operation.out.data); };
  const auto has = [&](const TaskQueue& queue) { return queue.any_of(is_its); };
  return has(collectives_) || std::ranges::any_of(sends_, has) || std::ranges::any_of(recvs_, has);
}

bool SharedCommunicator::advance(TaskQueue& queue) {
  if (queue.empty()) return false;
  const size_t before = queue.size();
  const bool moved = queue.advance();
  if (const size_t done = before - queue.size(); done > 0) {
    outstanding_ -= done;
    engine_->end_operations(done);
  }
  return moved;
}

bool SharedCommunicator::advance() noexcept {
  try {
    bool moved = advance(collectives_);
    if (outstanding_ == collectives_.size()) return moved;
    for (TaskQueue& queue : sends_) moved |= advance(queue);
    for (TaskQueue& queue : recvs_) moved |= advance(queue);
    return moved;
  } catch (...) {
    die(std::current_exception());
    return true;
  }
}

void SharedCommunicator::die(const std::exception_ptr& error) noexcept {
  if (!is_dead() && !echo_of(error)) publish_failure(failed_first_text(rank(), error));
  end_all(error);
}

void SharedCommunicator::end(const std::exception_ptr& error) noexcept {
  if (is_dead()) return;
  const auto echo = echo_of(error);
  publish_failure(echo ? *echo : failed_first_text(rank(), error));
  end_all(error);
}

void SharedCommunicator::publish_failure(const std::string& why) noexcept {
  if (slot_ >= 0 && state_.region.control().failure.publish(rank(), why)) state_.ring_others();
}

void SharedCommunicator::end_all(const std::exception_ptr& error) noexcept {
  keep_first_error(error);
  engine_->arena()->stop_reuse();
  engine_->end_operations(std::exchange(outstanding_, 0));
  collectives_.fail(first_error());
  for (TaskQueue& queue : sends_) queue.fail(first_error());
  for (TaskQueue& queue : recvs_) queue.fail(first_error());
}

void SharedCommunicator::check_alive(const Descriptor& call) {
  if (!is_dead()) {
    if (!engine_->has_failure(*this)) return;
    const auto failure = engine_->peer_failure(*this, call);
    if (failure != nullptr) {
      advance();  // its own error takes precedence
      die(failure);
    }
  }
  throw_if_dead();
}

std::optional<bool> SharedCommunicator::has_message(int peer) {
  engine_->poll();
  Descriptor call;
  call.verb = static_cast<uint8_t>(Verb::recv);
  call.root = peer;
  check_alive(call);
  const Mailbox& box = state_.region.mailbox(peer, rank());
  return recvs_[static_cast<size_t>(peer)].empty() &&
         box.written.load(std::memory_order_acquire) > box.consumed.load(std::memory_order_relaxed);
}

void SharedCommunicator::enqueue(TaskQueue& queue, std::unique_ptr<SharedTask> task,
                                 std::shared_ptr<Operation> operation) {
  check_alive(task->call());
  queue.push(std::move(task), std::move(operation));
  ++outstanding_;
  engine_->begin_operation();
  advance();
}

void SharedCommunicator::complete(TaskQueue& queue, SharedTask& task) {
  Operation& operation = task.operation();
  const bool is_alone = engine_->outstanding() == 0;
  if (!is_alone || is_dead() || engine_->has_failure(*this)) {
    note(operation);
    check_alive(task.call());
  }
  queue.push(task);
  ++outstanding_;
  engine_->begin_operation();
  // If nothing else is in flight it polls only this communicator, and publishes before it writes the flight log.
  if (is_alone) {
    advance();
    note(operation);
  }
  for (int spins = 0; is_alone && spins < engine_->spins() && !operation.complete; ++spins) {
    if (!advance() && spins >= kEagerSpins) relax();
  }
  if (!operation.complete) return wait(operation);
  if (operation.error != nullptr) std::rethrow_exception(operation.error);
}

void SharedCommunicator::start(const std::shared_ptr<Operation>& operation) {
  TaskQueue& queue = queue_of(*operation);
  if (operation->verb == Verb::send) return enqueue(queue, std::make_unique<SendTask>(state_, *operation), operation);
  if (operation->verb == Verb::recv) return enqueue(queue, std::make_unique<RecvTask>(state_, *operation), operation);
  enqueue(queue, std::make_unique<SharedCollective>(state_, *operation), operation);
}

void SharedCommunicator::execute(Operation& operation) {
  TaskQueue& queue = queue_of(operation);
  if (operation.verb == Verb::send) {
    SendTask task(state_, operation);
    complete(queue, task);
  } else if (operation.verb == Verb::recv) {
    RecvTask task(state_, operation);
    complete(queue, task);
  } else {
    SharedCollective task(state_, operation);
    complete(queue, task);
  }
}

void SharedCommunicator::finish(Operation& operation) {
  engine_->wait(*this, queue_of(operation), operation);
  if (operation.error != nullptr) std::rethrow_exception(operation.error);
}

std::shared_ptr<void> SharedCommunicator::allocate(size_t bytes) {
  // A full arena is not an error: collectives support any memory, and work in place if it is in an arena.
  if (auto memory = engine_->arena()->allocate(bytes)) return memory;
  return Communicator::allocate(bytes);
}

std::shared_ptr<void> SharedCommunicator::allocate_shared(size_t bytes) {
  if (size() == 1) return allocate(bytes);
  Operation operation = AllocateTask::make_operation(bytes);
  operation.sequence = take_sequence();
  std::shared_ptr<void> memory;
  AllocateTask task(state_, operation, memory);
  operation.flight = &recorder()->log();
  operation.flight_number = record(task.call());
  complete(collectives_, task);
  return memory;
}

std::shared_ptr<Communicator> SharedCommunicator::split(std::span<const int> members, std::string name) {
  RankState state;
  state.segment = state_.segment;
  state.arena = state_.arena;
  state.compares_labels = state_.compares_labels;
  static_cast<GroupInfo&>(state) = state_.part(members, check_members(members, *this, name), name);
  for (const int member : members) state.segment_ranks.push_back(state_.segment_ranks[static_cast<size_t>(member)]);
  SplitResult result;
  const uint64_t sequence = take_sequence();
  if (size() > 1) {
    Operation operation = split_operation(members, size(), state.name);
    operation.sequence = sequence;
    SplitTask task(state_, operation, result);
    operation.flight = &recorder()->log();
    operation.flight_number = record(task.call());
    complete(collectives_, task);
  }
  check_overlap(result.overlap, state_, state.name);
  if (result.slot < 0 && state.size > 1) {
    throw ResourceError(
        {.op = "split",
         .subject = state.name,
         .fact = fmt::format("the world has {} communicators already", state_.segment->layout().num_slots),
         .where = state_.text(),
         .action = "keep communicators instead of splitting again, or destroy those no longer used"});
  }
  return std::make_shared<SharedCommunicator>(engine_, std::move(state), result.slot,
                                              child_lineage(sequence, members.front()));
}

}  // namespace caravan::shared
