#pragma once

#include <memory>
#include <string>
#include <vector>

#include "caravan/comm/backends/shared/shared_engine.h"
#include "caravan/comm/level.h"

namespace caravan::shared {

/// A communicator over memory that its ranks share: threads of one process, or processes of one host.
class SharedCommunicator final : public Level {
 public:
  /// The communicator of all ranks of the engine's segment, in slot 0. If it is part of a larger world, the segment's
  /// flight logs are used by that world, and this communicator's log is private.
  static std::shared_ptr<Communicator> make_world(std::shared_ptr<SharedEngine> engine);

  /// `slot` is -1 for a communicator of one rank, which needs no slot.
  SharedCommunicator(std::shared_ptr<SharedEngine> engine, RankState state, int slot, Lineage lineage);
  ~SharedCommunicator() override;

  std::string_view backend() const noexcept override { return engine_->backend(); }
  const FlightLog* flight_of(int rank) const noexcept override {
    return &state_.segment->rank(state_.segment_ranks[static_cast<size_t>(rank)]).flight;
  }
  /// Writes to this rank's log in the segment, which peers can read even if this rank dies.
  std::shared_ptr<FlightRecorder> make_shared_recorder() const;
  std::shared_ptr<Communicator> split(std::span<const int> members, std::string name) override;
  std::shared_ptr<void> allocate(size_t bytes) override;
  std::shared_ptr<void> allocate_shared(size_t bytes) override;
  bool shares_memory() const noexcept override { return true; }
  void progress() override { engine_->poll(); }
  std::optional<bool> has_message(int peer) override;

  const RankState& state() const noexcept { return state_; }
  size_t outstanding() const noexcept { return outstanding_; }
  /// Whether an operation in flight has a buffer in these bytes.
  bool uses(const std::byte* memory, size_t bytes) const;
  /// A queue that is not empty; outstanding() > 0.
  const TaskQueue& first_queue() const noexcept;
  /// Advances every queue once. True if there was progress. An error of a task ends the communicator.
  bool advance() noexcept;
  /// Fails everything outstanding and every later call with `error`, and publishes it to the peers.
  void die(const std::exception_ptr& error) noexcept;
  void end(const std::exception_ptr& error) noexcept override;
  void end_world(std::string_view fact) noexcept override { engine_->abort(engine_->world_rank(), fact); }
  void pause(const std::function<bool()>& is_done, std::chrono::microseconds at_most) override {
    engine_->pause(is_done, at_most);
  }
  void set_side_work(std::function<SideWork()> work) override { engine_->set_side_work(std::move(work)); }
  LateRank look_for(int rank) const override;

 private:
  void start(const std::shared_ptr<Operation>& operation) override;
  void execute(Operation& operation) override;
  bool execute_notes() const noexcept override { return true; }
  void finish(Operation& operation) override;

  void enqueue(TaskQueue& queue, std::unique_ptr<SharedTask> task, std::shared_ptr<Operation> operation);
  /// Runs a task of a blocking call; throws its error.
  void complete(TaskQueue& queue, SharedTask& task);
  void check_alive(const Descriptor& call);
  void publish_failure(const std::string& why) noexcept;
  void end_all(const std::exception_ptr& error) noexcept;
  size_t num_outstanding() const noexcept override { return outstanding_; }
  void complete_outstanding() noexcept override;
  void abandon(const std::exception_ptr& error, const std::string& reason) noexcept override;
  TaskQueue& queue_of(const Operation& operation) noexcept;
  bool advance(TaskQueue& queue);
  void leave() noexcept;

  std::shared_ptr<SharedEngine> engine_;
  RankState state_;
  int slot_;
  TaskQueue collectives_;
  std::vector<TaskQueue> sends_;  // per peer
  std::vector<TaskQueue> recvs_;
  size_t outstanding_ = 0;
};

}  // namespace caravan::shared
