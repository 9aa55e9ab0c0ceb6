#include "caravan/comm/hierarchical/hierarchical_communicator.h"

#include <algorithm>
#include <numeric>
#include <sched.h>
#include <thread>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/comm/call_errors.h"
#include "caravan/comm/hierarchical/collectives.h"
#include "caravan/comm/shared/relax.h"
#include "caravan/comm/shared/shared_communicator.h"

namespace caravan::hierarchical {
namespace {

using std::chrono::milliseconds;

constexpr int kSpins = 200;
constexpr int kYields = 32;
constexpr milliseconds kNapAlone{50};  // one level wakes a rank that sleeps on it, another does not

}  // namespace

std::shared_ptr<Communicator> HierarchicalCommunicator::make_world(std::shared_ptr<Member> member, Levels levels) {
  GroupSeat seat{levels.rank, levels.topology.size(), "world", {}};
  seat.world_ranks.resize(static_cast<size_t>(seat.size));
  std::iota(seat.world_ranks.begin(), seat.world_ranks.end(), 0);
  // What this rank was doing can be read by its host's ranks, whatever becomes of it.
  Lineage lineage{0, dynamic_cast<shared::SharedCommunicator&>(*levels.inner).make_shared_recorder()};
  return std::make_shared<HierarchicalCommunicator>(std::move(member), std::move(levels), std::move(seat),
                                                    std::move(lineage));
}

HierarchicalCommunicator::HierarchicalCommunicator(std::shared_ptr<Member> member, Levels levels, GroupSeat seat,
                                                   Lineage lineage)
    : Communicator(seat.rank, seat.size, seat.name, lineage),
      member_(std::move(member)),
      levels_(std::move(levels)),
      seat_(std::move(seat)),
      scope_(fmt::format("{:x}", lineage.identity)),
      exceptions_at_birth_(std::uncaught_exceptions()),
      calls_made_(seat_.size) {
  member_->add(*this);
}

HierarchicalCommunicator::~HierarchicalCommunicator() {
  if (std::uncaught_exceptions() > exceptions_at_birth_) {
    // Peers may be waiting for what this rank will never call.
    if (outstanding() > 0) {
      const std::string text =
          fmt::format("rank {} left: \"{}\" was destroyed there while an exception passed", rank(), name());
      member_->board().publish_failure(scope_, text);
      fail(std::make_exception_ptr(CommError({.op = "communicator", .subject = name(), .fact = text})));
    }
  } else {
    complete_all();
  }
  if (size() > 1 && error_ == nullptr) member_->board().publish_leave(scope_, rank(), calls_made_.text());
  member_->remove(*this);
}

void HierarchicalCommunicator::complete_all() noexcept {
  while (const Task* task = first()) {
    const std::shared_ptr<Operation> operation = task->operation();
    try {
      finish(*operation);
    } catch (const std::exception&) {  // nobody waits for it
    }
  }
}

const FlightLog* HierarchicalCommunicator::flight_of(int rank) const noexcept {
  return levels_.is_mate(rank) ? levels_.inner->flight_of(levels_.topology.place[static_cast<size_t>(rank)]) : nullptr;
}

bool HierarchicalCommunicator::select(std::shared_ptr<const algorithms::SelectionTable> table) {
  if (levels_.everyone == nullptr) return false;
  const bool taken = levels_.everyone->select(table);
  return levels_.cross->select(std::move(table)) && taken;
}

std::shared_ptr<void> HierarchicalCommunicator::allocate_shared(size_t bytes) {
  // On one host it is one for all; between hosts each has its own, as of any memory.
  return levels_.topology.has_one_host() ? levels_.inner->allocate_shared(bytes) : allocate(bytes);
}

void HierarchicalCommunicator::progress() {
  member_->progress();
  member_->look();
}

void HierarchicalCommunicator::abort(std::string_view reason) noexcept {
  std::string text(reason);
  try {
    text = fmt::format("rank {} of the world gave up: {}", member_->rank(), reason);
  } catch (const std::exception&) {  // no memory for more
  }
  member_->close(member_->board().publish_failure(messages::Member::kWorld, text));
}

const Task* HierarchicalCommunicator::first() const noexcept {
  if (!collectives_.empty()) return collectives_.front().get();
  return direct_.empty() ? nullptr : direct_.front().get();
}

Communicator& HierarchicalCommunicator::carrier_of(const Operation& operation, int& peer) const {
  peer = operation.peer;
  if (peer < 0) return *levels_.direct();
  const auto at = static_cast<size_t>(peer);
  if (levels_.topology.host[at] != levels_.host()) return *levels_.everyone;
  peer = levels_.topology.place[at];
  return *levels_.inner;
}

std::shared_ptr<Check> HierarchicalCommunicator::add_check(Task& task) {
  auto check = std::make_shared<Check>(task, [this](int rank, const Descriptor& call) {
    member_->last_calls().note(seat_.world_ranks[static_cast<size_t>(rank)], call, name());
  });
  check->add_steps();
  task.own(check);
  return check;
}

void HierarchicalCommunicator::enqueue(const std::shared_ptr<Task>& task, bool is_direct) {
  (is_direct ? direct_ : collectives_).push_back(task);
  if (is_direct) {
    try {
      if (task->advance()) ++num_moves_;
    } catch (...) {
      fail(error_of(task->descriptor(), std::current_exception()));
    }
  }
  member_->progress();
}

void HierarchicalCommunicator::start(const std::shared_ptr<Operation>& operation) {
  if (error_ != nullptr) std::rethrow_exception(error_);
  calls_made_.count(*operation);
  const auto task = std::make_shared<Task>(levels_, seat_, operation, describe(*operation));
  const bool is_direct = operation->peer >= 0 || levels_.direct() != nullptr;
  if (is_direct) {
    int peer = 0;
    Communicator& carrier = carrier_of(*operation, peer);
    task->then(&carrier, [raw = task.get(), peer](Communicator& level) { return begin_on(level, *raw, peer); });
  } else {
    const bool checked = member_->options().check;
    if (checked) add_check(*task);
    if (operation->verb != Verb::barrier || !checked) add_collective(*task);
  }
  enqueue(task, is_direct);
}

void HierarchicalCommunicator::execute(Operation& operation) {
  if (levels_.direct() == nullptr || member_->outstanding() > 0) return Communicator::execute(operation);
  if (error_ != nullptr) std::rethrow_exception(error_);
  calls_made_.count(operation);
  try {
    int peer = 0;
    Communicator& carrier = carrier_of(operation, peer);
    run_on(carrier, operation, peer);
    operation.set_complete();
  } catch (...) {
    fail(error_of(describe(operation), std::current_exception()));
    std::rethrow_exception(error_);
  }
}

bool HierarchicalCommunicator::advance() noexcept {
  bool moved = false;
  while (advance_collectives()) moved = true;
  return advance_direct() || moved;
}

bool HierarchicalCommunicator::advance_collectives() {
  if (collectives_.empty()) return false;
  const std::shared_ptr<Task> task = collectives_.front();
  try {
    if (!task->advance()) return false;
    ++num_moves_;
    if (!task->finished()) return true;
    collectives_.pop_front();
    task->operation()->set_complete();
  } catch (...) {
    fail(error_of(task->descriptor(), std::current_exception()));
  }
  return true;
}

bool HierarchicalCommunicator::advance_direct() {
  bool moved = false;
  for (size_t i = 0; i < direct_.size();) {
    const std::shared_ptr<Task> task = direct_[i];
    try {
      if (!task->finished() && !task->advance()) {
        ++i;
        continue;
      }
      moved = true;
      ++num_moves_;
      if (!task->finished()) continue;
      direct_.erase(direct_.begin() + static_cast<std::ptrdiff_t>(i));
      task->operation()->set_complete();
    } catch (...) {
      fail(error_of(task->descriptor(), std::current_exception()));
      return true;
    }
  }
  return moved;
}

Task& HierarchicalCommunicator::task_of(const Operation& operation) const {
  const auto found =
      std::ranges::find_if(direct_, [&](const auto& task) { return task->operation().get() == &operation; });
  return found != direct_.end() ? **found : *collectives_.front();
}

void HierarchicalCommunicator::finish(Operation& operation) {
  const milliseconds timeout = member_->options().timeout;
  Clock::time_point since = Clock::now();
  uint64_t moves = num_moves_;
  int idle = 0;
  while (!operation.complete) {
    if (member_->progress()) {
      idle = 0;
      continue;
    }
    if (++idle < kSpins) {
      shared::relax();
      continue;
    }
    if (idle < kSpins + kYields) {
      sched_yield();
      continue;
    }
    task_of(operation).pause(std::min(timeout, member_->outstanding() > 1 ? Level::kNap : kNapAlone));
    const Clock::time_point now = Clock::now();
    if (moves != num_moves_) {
      moves = num_moves_;
      since = now;
      num_silent_ = 0;
    }
    member_->look();
    if (operation.complete || now - since < timeout) continue;
    time_out(operation);
    since = Clock::now();
  }
  if (operation.error != nullptr) std::rethrow_exception(operation.error);
}

}  // namespace caravan::hierarchical
