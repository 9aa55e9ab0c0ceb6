#pragma once

#include <deque>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "caravan/base/error.h"
#include "caravan/comm/communicator.h"
#include "caravan/comm/group_seat.h"
#include "caravan/comm/hierarchical/calls_made.h"
#include "caravan/comm/hierarchical/check.h"
#include "caravan/comm/hierarchical/levels.h"
#include "caravan/comm/hierarchical/member.h"
#include "caravan/comm/hierarchical/task.h"

namespace caravan::hierarchical {

/// A communicator of two levels: of shared memory inside each host, of messages between them. Collectives are executed
/// one after the other; what one level does alone is handed to it at once.
class HierarchicalCommunicator final : public Communicator {
 public:
  static std::shared_ptr<Communicator> make_world(std::shared_ptr<Member> member, Levels levels);
  HierarchicalCommunicator(std::shared_ptr<Member> member, Levels levels, GroupSeat seat, Lineage lineage);
  ~HierarchicalCommunicator() override;

  std::string_view backend() const noexcept override { return member_->backend(); }
  const FlightLog* flight_of(int rank) const noexcept override;
  bool select(std::shared_ptr<const algorithms::SelectionTable> table) override;
  std::shared_ptr<Communicator> split(std::span<const int> members, std::string name) override;
  std::shared_ptr<void> allocate(size_t bytes) override { return member_->inner().allocate(bytes); }
  std::shared_ptr<void> allocate_shared(size_t bytes) override;
  void progress() override;
  void abort(std::string_view reason) noexcept override;

  /// Its name in the store.
  const std::string& scope() const noexcept { return scope_; }
  const CallsMade& calls_made() const noexcept { return calls_made_; }
  size_t outstanding() const noexcept { return collectives_.size() + direct_.size(); }
  /// Advances what is outstanding once. True if anything was done. An error is the end of the communicator.
  bool advance() noexcept;
  /// Ends everything if another rank has failed or left without what is outstanding here.
  void look_elsewhere() noexcept;
  void fail_with_peer_error(const std::string& fact) noexcept;
  /// Waits until nothing is outstanding, with or without error.
  void complete_all() noexcept;

 private:
  using Clock = std::chrono::steady_clock;

  void start(const std::shared_ptr<Operation>& operation) override;
  void execute(Operation& operation) override;
  void finish(Operation& operation) override;

  Communicator& carrier_of(const Operation& operation, int& peer) const;
  std::shared_ptr<Check> add_check(Task& task);
  void enqueue(const std::shared_ptr<Task>& task, bool is_direct);
  bool advance_collectives();
  bool advance_direct();
  const Task* first() const noexcept;
  /// The one to wait for until `operation` is complete: its own, or a collective before it.
  Task& task_of(const Operation& operation) const;

  /// What went wrong in `call`, as this communicator's error: told to the ranks of all hosts.
  std::exception_ptr error_of(const Descriptor& call, const std::exception_ptr& cause) noexcept;
  std::exception_ptr error_of_messages(const Descriptor& call, const CommError& cause) const;
  /// What another rank has told; null: nothing that concerns `call`.
  std::exception_ptr known_error(const Descriptor& call);
  int rank_that_left(const Descriptor& call);
  /// `operation` has stood still for the time-out: ends the communicator unless nobody is missing.
  void time_out(const Operation& operation) noexcept;
  std::vector<int> find_missing(const Descriptor& call);
  LateRank look_for(int late) const;
  void fail(const std::exception_ptr& error) noexcept;

  void agree_on_split(std::span<const int> members, const std::string& name, uint64_t sequence);
  Levels split_levels(std::span<const int> members, const std::string& name);

  std::shared_ptr<Member> member_;
  Levels levels_;
  GroupSeat seat_;
  std::string scope_;
  int exceptions_at_birth_;
  std::exception_ptr error_;  // the first
  CallsMade calls_made_;
  std::deque<std::shared_ptr<Task>> collectives_;
  std::deque<std::shared_ptr<Task>> direct_;
  uint64_t num_moves_ = 0;
  int num_silent_ = 0;  // time-outs in which nobody was missing
};

}  // namespace caravan::hierarchical
