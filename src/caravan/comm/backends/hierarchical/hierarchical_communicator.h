#pragma once

#include <deque>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "caravan/base/error.h"
#include "caravan/comm/backends/hierarchical/check.h"
#include "caravan/comm/backends/hierarchical/hierarchical_engine.h"
#include "caravan/comm/backends/hierarchical/hierarchical_task.h"
#include "caravan/comm/backends/hierarchical/levels.h"
#include "caravan/comm/calls/call_counts.h"
#include "caravan/comm/communicator.h"
#include "caravan/comm/group_info.h"

namespace caravan::hierarchical {

/// A communicator over shared memory on each host and messages between hosts. Collectives are executed one after the
/// other; operations that one level can execute by itself go to it at once.
class HierarchicalCommunicator final : public BackendCommunicator {
 public:
  static std::shared_ptr<Communicator> make_world(std::shared_ptr<HierarchicalEngine> engine, Levels levels);
  HierarchicalCommunicator(std::shared_ptr<HierarchicalEngine> engine, Levels levels, GroupInfo group, Lineage lineage);
  ~HierarchicalCommunicator() override;

  std::string_view backend() const noexcept override { return engine_->backend(); }
  const FlightLog* flight_of(int rank) const noexcept override;
  bool select(std::shared_ptr<const algorithms::SelectionTable> table) override;
  const algorithms::SelectionTable* selection() const noexcept override;
  std::shared_ptr<Communicator> split(std::span<const int> members, std::string name) override;
  std::shared_ptr<void> allocate(size_t bytes) override { return engine_->local().allocate(bytes); }
  std::shared_ptr<void> allocate_shared(size_t bytes) override;
  bool shares_memory() const noexcept override { return levels_.topology.has_one_host(); }
  void progress() override;
  void end(const std::exception_ptr& error) noexcept override;
  void end_world(std::string_view fact) noexcept override;

  /// The name under which notices refer to it.
  const std::string& scope() const noexcept { return scope_; }
  const CallCounts& counts() const noexcept { return counts_; }
  size_t outstanding() const noexcept { return collectives_.size() + direct_.size(); }
  /// Advances what is outstanding once. Returns true if anything made progress. An error ends the communicator.
  bool advance() noexcept;
  /// Ends this communicator if another rank has failed, or has left without issuing what is outstanding here.
  void check_notices() noexcept;
  void fail_with_peer_error(const std::string& fact) noexcept;

 private:
  using Clock = std::chrono::steady_clock;

  void start(const std::shared_ptr<Operation>& operation) override;
  void execute(Operation& operation) override;
  void finish(Operation& operation) override;

  size_t num_outstanding() const noexcept override { return outstanding(); }
  void complete_outstanding() noexcept override;
  void abandon(const std::exception_ptr& error, const std::string& reason) noexcept override;

  Communicator& carrier_of(const Operation& operation, int& peer) const;
  std::shared_ptr<Check> add_check(HierarchicalTask& task);
  void enqueue(const std::shared_ptr<HierarchicalTask>& task, bool is_direct);
  bool advance_collectives();
  bool advance_direct();
  const HierarchicalTask* first() const noexcept;
  /// The task to wait for until `operation` is complete: its own, or a collective before it.
  HierarchicalTask& task_of(const Operation& operation) const;

  /// This communicator's error for the error of a task. Publishes it to the ranks of all hosts.
  std::exception_ptr error_of(const Descriptor& call, const std::exception_ptr& cause) noexcept;
  std::exception_ptr error_of_peer_failure(const Descriptor& call, const PeerFailure& failure);
  std::exception_ptr error_of_messages(const Descriptor& call, const CommError& cause) const;
  /// The error of `call` that another rank's notice causes; null if there is none.
  std::exception_ptr known_error(const Descriptor& call);
  /// Called when `operation` has made no progress for the time-out: ends the communicator if a rank is missing.
  void time_out(const Operation& operation) noexcept;
  std::vector<int> find_missing(const Descriptor& call);
  LateRank look_for(int late) const;

  void agree_on_split(std::span<const int> members, const std::string& name, uint64_t sequence);
  Levels split_levels(std::span<const int> members, const std::string& name);

  std::shared_ptr<HierarchicalEngine> engine_;
  Levels levels_;
  GroupInfo group_;
  std::string scope_;
  CallCounts counts_;
  std::deque<std::shared_ptr<HierarchicalTask>> collectives_;
  std::deque<std::shared_ptr<HierarchicalTask>> direct_;
  uint64_t num_moves_ = 0;
  int num_silent_timeouts_ = 0;  // consecutive time-outs in which no rank was missing
};

}  // namespace caravan::hierarchical
