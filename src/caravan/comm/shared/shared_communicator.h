#pragma once

#include <memory>
#include <string>
#include <vector>

#include "caravan/comm/communicator.h"
#include "caravan/comm/level.h"
#include "caravan/comm/shared/engine.h"

namespace caravan::shared {

/// A communicator over memory that its ranks share: threads of one process, or processes of one host.
class SharedCommunicator final : public Communicator, public Level {
 public:
  /// The communicator of all ranks of the engine's segment, in its slot 0. Where it is a part of a larger world, that
  /// one writes its log where the others can read it, and this one its own elsewhere.
  static std::shared_ptr<Communicator> make_world(std::shared_ptr<Engine> engine);

  /// `slot` is -1 for a communicator of one rank, which needs none.
  SharedCommunicator(std::shared_ptr<Engine> engine, Seat seat, int slot, Lineage lineage);
  ~SharedCommunicator() override;

  std::string_view backend() const noexcept override { return engine_->backend(); }
  const FlightLog* flight_of(int rank) const noexcept override {
    return &seat_.segment->rank(seat_.segment_ranks[static_cast<size_t>(rank)]).flight;
  }
  /// To this rank's log in the segment: others can read what it was doing, whatever becomes of it.
  std::shared_ptr<FlightRecorder> make_shared_recorder() const;
  std::shared_ptr<Communicator> split(std::span<const int> members, std::string name) override;
  std::shared_ptr<void> allocate(size_t bytes) override;
  std::shared_ptr<void> allocate_shared(size_t bytes) override;
  void progress() override { engine_->poll(); }
  void abort(std::string_view reason) noexcept override;

  const Seat& seat() const noexcept { return seat_; }
  size_t outstanding() const noexcept { return outstanding_; }
  /// A queue with something in it.
  const TaskQueue& first_queue() const noexcept;
  /// Advances every queue once. True if anything was done. An error of a task is the end of the communicator.
  bool advance() noexcept;
  /// Ends everything outstanding, and every later call, with `error`, which the other ranks are told.
  void die(const std::exception_ptr& error) noexcept;
  void end(const std::exception_ptr& error) noexcept override;
  void end_world(std::string_view fact) noexcept override { engine_->abort(engine_->world_rank(), fact); }
  void pause(const std::function<bool()>& is_done, std::chrono::microseconds at_most) override {
    engine_->pause(is_done, at_most);
  }
  void drive_also(std::function<Besides()> work) override { engine_->drive_also(std::move(work)); }
  LateRank look_for(int rank) const override;

 private:
  void start(const std::shared_ptr<Operation>& operation) override;
  void execute(Operation& operation) override;
  void finish(Operation& operation) override;

  void enqueue(TaskQueue& queue, std::unique_ptr<Task> task, std::shared_ptr<Operation> operation);
  /// Does a task whose caller waits for it; throws its error.
  void complete(TaskQueue& queue, Task& task);
  void throw_if_dead(const Task& task);
  void tell(const std::string& why) noexcept;
  void end_all(const std::exception_ptr& error) noexcept;
  TaskQueue& queue_of(const Operation& operation) noexcept;
  bool advance(TaskQueue& queue);
  void leave() noexcept;

  std::shared_ptr<Engine> engine_;
  Seat seat_;
  int slot_;
  int exceptions_at_birth_;
  std::exception_ptr error_;  // the first
  TaskQueue collectives_;
  std::vector<TaskQueue> sends_;  // per peer
  std::vector<TaskQueue> recvs_;
  size_t outstanding_ = 0;
};

}  // namespace caravan::shared
