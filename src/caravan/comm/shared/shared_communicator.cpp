#include "caravan/comm/shared/shared_communicator.h"

#include <numeric>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/comm/call_errors.h"
#include "caravan/comm/descriptor.h"
#include "caravan/comm/members.h"
#include "caravan/comm/peer_failure.h"
#include "caravan/comm/shared/allocate.h"
#include "caravan/comm/shared/collective.h"
#include "caravan/comm/shared/mail.h"
#include "caravan/comm/shared/relax.h"
#include "caravan/comm/shared/split.h"
#include "caravan/comm/shared/wait_errors.h"

namespace caravan::shared {
namespace {

constexpr int kEagerSpins = 100;  // a pause takes as long as a flag does from core to core

/// What another rank has told, if `error` says no more.
std::optional<std::string> echo_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const PeerFailure& failure) {
    return failure.text().fact;
  } catch (...) {
    return std::nullopt;
  }
}

std::shared_ptr<FlightRecorder> recorder_in(const Seat& seat) {
  const auto rank = seat.segment_ranks[static_cast<size_t>(seat.rank)];
  return std::make_shared<FlightRecorder>(seat.segment->rank(rank).flight, seat.segment);
}

}  // namespace

std::shared_ptr<Communicator> SharedCommunicator::make_world(std::shared_ptr<Engine> engine) {
  Seat seat;
  seat.segment = engine->segment();
  seat.arena = engine->arena();
  seat.rank = engine->world_rank();
  seat.size = seat.segment->num_ranks();
  seat.name = "world";
  seat.segment_ranks.resize(static_cast<size_t>(seat.size));
  std::iota(seat.segment_ranks.begin(), seat.segment_ranks.end(), 0);
  seat.world_ranks = engine->world_ranks();
  Lineage lineage;
  if (!engine->is_part()) lineage.recorder = recorder_in(seat);
  return std::make_shared<SharedCommunicator>(std::move(engine), std::move(seat), 0, std::move(lineage));
}

std::shared_ptr<FlightRecorder> SharedCommunicator::make_shared_recorder() const { return recorder_in(seat_); }

LateRank SharedCommunicator::look_for(int rank) const { return shared::look_for(seat_, rank, engine_->watch()); }

SharedCommunicator::SharedCommunicator(std::shared_ptr<Engine> engine, Seat seat, int slot, Lineage lineage)
    : Communicator(seat.rank, seat.size, seat.name, std::move(lineage)),
      engine_(std::move(engine)),
      seat_(std::move(seat)),
      slot_(slot),
      exceptions_at_birth_(std::uncaught_exceptions()),
      sends_(static_cast<size_t>(seat_.size)),
      recvs_(static_cast<size_t>(seat_.size)) {
  if (slot_ >= 0) seat_.region = Region(seat_.segment->slot(slot_), seat_.size);
  engine_->add(*this);
}

SharedCommunicator::~SharedCommunicator() {
  // While an exception passes, peers may be waiting for what this rank will never call: they learn that it has left.
  const bool unwinding = std::uncaught_exceptions() > exceptions_at_birth_;
  while (outstanding_ > 0 && !unwinding) {
    const TaskQueue& queue = first_queue();
    const std::shared_ptr<Operation> operation = queue.head_operation();  // whose handle may be dropped
    engine_->wait(*this, queue, *operation);
  }
  if (outstanding_ > 0) {
    end_all(std::make_exception_ptr(CommError({.op = "communicator",
                                               .subject = name(),
                                               .fact = fmt::format("destroyed with {} operations outstanding, while an "
                                                                   "exception passed",
                                                                   outstanding_)})));
  }
  engine_->remove(*this);
  leave();
}

void SharedCommunicator::leave() noexcept {
  if (slot_ < 0) return;
  seat_.region.left(rank()).store(1, std::memory_order_seq_cst);
  seat_.ring_others();
  const uint32_t before = seat_.region.control().num_left.fetch_add(1, std::memory_order_acq_rel);
  if (before + 1 == static_cast<uint32_t>(size())) seat_.segment->release_slot(slot_);
}

void SharedCommunicator::abort(std::string_view reason) noexcept {
  try {
    engine_->abort(engine_->world_rank(),
                   fmt::format("rank {} of the world gave up: {}", engine_->name_of(engine_->world_rank()), reason));
  } catch (const std::exception&) {  // no memory for the text
    engine_->abort(engine_->world_rank(), reason);
  }
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
  if (error_ == nullptr && !echo_of(error)) tell(failed_first_text(rank(), error));
  end_all(error);
}

void SharedCommunicator::end(const std::exception_ptr& error) noexcept {
  if (error_ != nullptr) return;
  const auto echo = echo_of(error);
  tell(echo ? *echo : failed_first_text(rank(), error));
  end_all(error);
}

void SharedCommunicator::tell(const std::string& why) noexcept {
  if (slot_ >= 0 && seat_.region.control().failure.publish(rank(), why)) seat_.ring_others();
}

void SharedCommunicator::end_all(const std::exception_ptr& error) noexcept {
  if (error_ == nullptr) error_ = error;
  engine_->arena()->keep_everything();
  engine_->end_operations(std::exchange(outstanding_, 0));
  collectives_.fail(error_);
  for (TaskQueue& queue : sends_) queue.fail(error_);
  for (TaskQueue& queue : recvs_) queue.fail(error_);
}

void SharedCommunicator::throw_if_dead(const Task& task) {
  if (error_ == nullptr) {
    if (!engine_->somebody_failed(*this)) return;
    const auto failure = engine_->peer_failure(*this, task.call());
    if (failure != nullptr) {
      advance();  // an error of this rank's own says more than the echo of another's
      die(failure);
    }
  }
  if (error_ != nullptr) std::rethrow_exception(error_);
}

void SharedCommunicator::enqueue(TaskQueue& queue, std::unique_ptr<Task> task, std::shared_ptr<Operation> operation) {
  throw_if_dead(*task);
  queue.push(std::move(task), std::move(operation));
  ++outstanding_;
  engine_->begin_operation();
  advance();
}

void SharedCommunicator::complete(TaskQueue& queue, Task& task) {
  throw_if_dead(task);
  Operation& operation = task.operation();
  const bool is_alone = engine_->outstanding() == 0;
  queue.push(task);
  ++outstanding_;
  engine_->begin_operation();
  // With nothing else to drive, it looks at nothing but this communicator.
  for (int spins = 0; is_alone && spins < engine_->spins() && !operation.complete; ++spins) {
    if (!advance() && spins >= kEagerSpins) relax();
  }
  if (!operation.complete) return wait(operation);
  if (operation.error != nullptr) std::rethrow_exception(operation.error);
}

void SharedCommunicator::start(const std::shared_ptr<Operation>& operation) {
  TaskQueue& queue = queue_of(*operation);
  if (operation->verb == Verb::send) return enqueue(queue, std::make_unique<SendTask>(seat_, *operation), operation);
  if (operation->verb == Verb::recv) return enqueue(queue, std::make_unique<RecvTask>(seat_, *operation), operation);
  enqueue(queue, std::make_unique<Collective>(seat_, *operation), operation);
}

void SharedCommunicator::execute(Operation& operation) {
  TaskQueue& queue = queue_of(operation);
  if (operation.verb == Verb::send) {
    SendTask task(seat_, operation);
    complete(queue, task);
  } else if (operation.verb == Verb::recv) {
    RecvTask task(seat_, operation);
    complete(queue, task);
  } else {
    Collective task(seat_, operation);
    complete(queue, task);
  }
}

void SharedCommunicator::finish(Operation& operation) {
  engine_->wait(*this, queue_of(operation), operation);
  if (operation.error != nullptr) std::rethrow_exception(operation.error);
}

std::shared_ptr<void> SharedCommunicator::allocate(size_t bytes) { return engine_->arena()->allocate(bytes); }

std::shared_ptr<void> SharedCommunicator::allocate_shared(size_t bytes) {
  if (size() == 1) return allocate(bytes);
  Operation operation = AllocateTask::make_operation(bytes);
  operation.sequence = take_sequence();
  std::shared_ptr<void> memory;
  AllocateTask task(seat_, operation, memory);
  operation.flight = &recorder()->log();
  operation.flight_number = record(task.call());
  complete(collectives_, task);
  return memory;
}

std::shared_ptr<Communicator> SharedCommunicator::split(std::span<const int> members, std::string name) {
  Seat seat;
  seat.segment = seat_.segment;
  seat.arena = seat_.arena;
  seat.rank = check_members(members, *this, name);
  seat.size = static_cast<int>(members.size());
  seat.name = std::move(name);
  for (const int member : members) {
    seat.segment_ranks.push_back(seat_.segment_ranks[static_cast<size_t>(member)]);
    seat.world_ranks.push_back(seat_.world_ranks[static_cast<size_t>(member)]);
  }
  SplitResult result;
  const uint64_t sequence = take_sequence();
  if (size() > 1) {
    Operation operation = split_operation(members, size(), seat.name);
    operation.sequence = sequence;
    SplitTask task(seat_, operation, result);
    operation.flight = &recorder()->log();
    operation.flight_number = record(task.call());
    complete(collectives_, task);
  }
  check_overlap(result.overlap, seat_, seat.name);
  if (result.slot < 0 && seat.size > 1) {
    throw ResourceError({.op = "split",
                         .subject = seat.name,
                         .fact = fmt::format("the world has {} communicators already", WorldControl::kNumSlots),
                         .where = seat_.text(),
                         .action = "keep communicators instead of splitting again, or destroy those no longer used"});
  }
  return std::make_shared<SharedCommunicator>(engine_, std::move(seat), result.slot,
                                              child_lineage(sequence, members.front()));
}

}  // namespace caravan::shared
