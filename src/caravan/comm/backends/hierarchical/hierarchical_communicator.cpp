#include "caravan/comm/backends/hierarchical/hierarchical_communicator.h"

#include <algorithm>

#include <fmt/format.h>

#include "caravan/comm/backends/hierarchical/collectives.h"
#include "caravan/comm/backends/shared/shared_communicator.h"
#include "caravan/comm/operations.h"

namespace caravan::hierarchical {
namespace {

using std::chrono::milliseconds;

constexpr int kSpins = 200;
constexpr milliseconds kNapAlone{50};  // progress in the level that a rank sleeps in wakes it, in another it does not

}  // namespace

std::shared_ptr<Communicator> HierarchicalCommunicator::make_world(std::shared_ptr<HierarchicalEngine> engine,
                                                                   Levels levels) {
  GroupInfo group = GroupInfo::of_world(levels.rank, levels.topology.size());
  // The ranks of its host can read what this rank was doing, even if it dies.
  Lineage lineage{0, dynamic_cast<shared::SharedCommunicator&>(*levels.local).make_shared_recorder()};
  return std::make_shared<HierarchicalCommunicator>(std::move(engine), std::move(levels), std::move(group),
                                                    std::move(lineage));
}

HierarchicalCommunicator::HierarchicalCommunicator(std::shared_ptr<HierarchicalEngine> engine, Levels levels,
                                                   GroupInfo group, Lineage lineage)
    : BackendCommunicator(group, lineage),
      engine_(std::move(engine)),
      levels_(std::move(levels)),
      group_(std::move(group)),
      scope_(fmt::format("{:x}", lineage.identity)),
      counts_(group_.size) {
  engine_->add(*this);
}

HierarchicalCommunicator::~HierarchicalCommunicator() {
  shut_down();
  if (size() > 1 && !engine_->has_failed()) {
    engine_->notices().publish_departure(scope_, group_, is_dead() ? nullptr : &counts_);
  }
  engine_->remove(*this);
}

void HierarchicalCommunicator::abandon(const std::exception_ptr& error, const std::string& reason) noexcept {
  engine_->notices().publish_failure(scope_, reason);
  end(error);
}

void HierarchicalCommunicator::complete_outstanding() noexcept {
  while (const HierarchicalTask* task = first()) {
    const std::shared_ptr<Operation> operation = task->operation();
    try {
      finish(*operation);
    } catch (const std::exception&) {  // nobody waits for it
    }
  }
}

const FlightLog* HierarchicalCommunicator::flight_of(int rank) const noexcept {
  return levels_.is_local(rank) ? levels_.local->flight_of(levels_.topology.local_rank[static_cast<size_t>(rank)])
                                : nullptr;
}

const algorithms::SelectionTable* HierarchicalCommunicator::selection() const noexcept {
  return levels_.cross == nullptr ? nullptr : levels_.cross->selection();
}

bool HierarchicalCommunicator::select(std::shared_ptr<const algorithms::SelectionTable> table) {
  if (levels_.global == nullptr) return false;
  const bool taken = levels_.global->select(table);
  return levels_.cross->select(std::move(table)) && taken;
}

std::shared_ptr<void> HierarchicalCommunicator::allocate_shared(size_t bytes) {
  // One buffer for all ranks of one host; on several hosts each rank has its own.
  return levels_.topology.has_one_host() ? levels_.local->allocate_shared(bytes) : allocate(bytes);
}

void HierarchicalCommunicator::progress() {
  engine_->progress();
  engine_->check_store();
}

void HierarchicalCommunicator::end_world(std::string_view fact) noexcept {
  engine_->close(engine_->notices().publish_failure(messages::Notices::kWorld, std::string(fact)));
}

const HierarchicalTask* HierarchicalCommunicator::first() const noexcept {
  if (!collectives_.empty()) return collectives_.front().get();
  return direct_.empty() ? nullptr : direct_.front().get();
}

Communicator& HierarchicalCommunicator::carrier_of(const Operation& operation, int& peer) const {
  peer = operation.peer;
  if (peer < 0) return *levels_.direct();
  const auto at = static_cast<size_t>(peer);
  if (levels_.topology.host[at] != levels_.host()) return *levels_.global;
  peer = levels_.topology.local_rank[at];
  return *levels_.local;
}

std::shared_ptr<Check> HierarchicalCommunicator::add_check(HierarchicalTask& task) {
  auto check = std::make_shared<Check>(task, [this](int rank, const Descriptor& call) {
    engine_->last_calls().note(group_.world_ranks[static_cast<size_t>(rank)], call, name());
  });
  check->add_steps();
  task.own(check);
  return check;
}

void HierarchicalCommunicator::enqueue(const std::shared_ptr<HierarchicalTask>& task, bool is_direct) {
  (is_direct ? direct_ : collectives_).push_back(task);
  if (is_direct) {
    try {
      if (task->advance()) ++num_moves_;
    } catch (...) {
      end(error_of(task->descriptor(), std::current_exception()));
    }
  }
  engine_->progress();
}

void HierarchicalCommunicator::start(const std::shared_ptr<Operation>& operation) {
  throw_if_dead();
  counts_.count(*operation);
  const auto task = std::make_shared<HierarchicalTask>(levels_, group_, operation, describe(*operation));
  const bool is_direct = operation->peer >= 0 || levels_.direct() != nullptr;
  if (is_direct) {
    int peer = 0;
    Communicator& carrier = carrier_of(*operation, peer);
    task->then(&carrier,
               [raw = task.get(), peer](Communicator& level) { return level.issue(same_call(raw->op(), peer)); });
  } else {
    const bool checked = engine_->options().check;
    if (checked) add_check(*task);
    if (operation->verb != Verb::barrier || !checked) add_collective(*task);
  }
  enqueue(task, is_direct);
}

void HierarchicalCommunicator::execute(Operation& operation) {
  if (levels_.direct() == nullptr || engine_->outstanding() > 0) return Communicator::execute(operation);
  throw_if_dead();
  counts_.count(operation);
  try {
    int peer = 0;
    Communicator& carrier = carrier_of(operation, peer);
    carrier.run(same_call(operation, peer));
    operation.set_complete();
  } catch (...) {
    end(error_of(describe(operation), std::current_exception()));
    throw_if_dead();
  }
}

bool HierarchicalCommunicator::advance() noexcept {
  bool moved = false;
  while (advance_collectives()) moved = true;
  return advance_direct() || moved;
}

bool HierarchicalCommunicator::advance_collectives() {
  if (collectives_.empty()) return false;
  const std::shared_ptr<HierarchicalTask> task = collectives_.front();
  try {
    if (!task->advance()) return false;
    ++num_moves_;
    if (!task->finished()) return true;
    collectives_.pop_front();
    task->operation()->set_complete();
  } catch (...) {
    end(error_of(task->descriptor(), std::current_exception()));
  }
  return true;
}

bool HierarchicalCommunicator::advance_direct() {
  bool moved = false;
  for (size_t i = 0; i < direct_.size();) {
    const std::shared_ptr<HierarchicalTask> task = direct_[i];
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
      end(error_of(task->descriptor(), std::current_exception()));
      return true;
    }
  }
  return moved;
}

HierarchicalTask& HierarchicalCommunicator::task_of(const Operation& operation) const {
  const auto found =
      std::ranges::find_if(direct_, [&](const auto& task) { return task->operation().get() == &operation; });
  return found != direct_.end() ? **found : *collectives_.front();
}

void HierarchicalCommunicator::finish(Operation& operation) {
  const milliseconds timeout = engine_->options().timeout;
  StallTimer stall(num_moves_);
  Backoff backoff(kSpins);
  while (!operation.complete) {
    if (engine_->progress()) {
      backoff.reset();
      continue;
    }
    if (!backoff.should_sleep()) continue;
    task_of(operation).pause(std::min(timeout, engine_->outstanding() > 1 ? Level::kNap : kNapAlone));
    const Clock::time_point now = Clock::now();
    if (stall.restart_if_moved(num_moves_, now)) num_silent_timeouts_ = 0;
    engine_->check_store();
    if (operation.complete || now - stall.since() < timeout) continue;
    time_out(operation);
    stall.restart();
  }
  if (operation.error != nullptr) std::rethrow_exception(operation.error);
}

}  // namespace caravan::hierarchical
