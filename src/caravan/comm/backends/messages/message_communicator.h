#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "caravan/comm/backends/messages/message_engine.h"
#include "caravan/comm/backends/wait_policy.h"
#include "caravan/comm/choice/selection.h"
#include "caravan/comm/level.h"

namespace caravan::messages {

/// A communicator over a Transport: one thread executes the collectives, and one per peer and direction executes the
/// sends and recvs.
class MessageCommunicator final : public Level {
 public:
  static std::shared_ptr<MessageCommunicator> make_world(std::shared_ptr<MessageEngine> engine);
  MessageCommunicator(std::shared_ptr<MessageEngine> engine, Group group, Lineage lineage = {});
  ~MessageCommunicator() override;

  std::string_view backend() const noexcept override { return engine_->backend(); }
  std::shared_ptr<Communicator> split(std::span<const int> members, std::string name) override;
  void progress() override;
  bool select(std::shared_ptr<const algorithms::SelectionTable> table) override;
  const algorithms::SelectionTable* selection() const noexcept override;

  void end(const std::exception_ptr& error) noexcept override;
  void end_world(std::string_view fact) noexcept override;
  void pause(const std::function<bool()>& is_done, std::chrono::microseconds at_most) override;
  void set_side_work(std::function<SideWork()> work) override { engine_->set_side_work(std::move(work)); }
  LateRank look_for(int rank) const override;

  /// Completes the operations whose tasks have ended.
  void collect() noexcept;
  /// Ends this communicator because its world has failed with `fact`.
  void fail_with_peer_error(const std::string& fact) noexcept;

 private:
  void start(const std::shared_ptr<Operation>& operation) override;
  void finish(Operation& operation) override;
  size_t num_outstanding() const noexcept override;
  void complete_outstanding() noexcept override;
  void abandon(const std::exception_ptr& error, const std::string& reason) noexcept override;

  void enqueue(std::unique_ptr<TaskThread>& thread, const std::shared_ptr<MessageTask>& task);
  /// Returns when `is_done()`. A time-out, or a failure elsewhere, ends everything, including this wait.
  void wait(TaskThread& thread, const std::function<bool()>& is_done);
  void collect(TaskThread& thread) noexcept;
  algorithms::Choice choose(const Operation& operation) const;
  std::unique_ptr<TaskThread>& thread_of(const Operation& operation);
  std::vector<TaskThread*> threads() const;
  /// The error of a failed task for this communicator. Tells the other ranks if they cannot know.
  std::exception_ptr error_of(const MessageTask& task) noexcept;
  std::exception_ptr late_error(const Descriptor& call, std::span<const int> ranks) const;
  std::exception_ptr lost_error(const MessageTask& task, const PeerLost& lost);
  /// Ends this communicator if another rank has failed, or has left without the current call of `thread`.
  bool failed_elsewhere(TaskThread& thread);
  void leave() noexcept;

  std::shared_ptr<MessageEngine> engine_;
  Group group_;
  std::string scope_;  ///< scope of its notices
  std::shared_ptr<const algorithms::SelectionTable> algorithms_;
  Periodic failure_check_{kStoreCheckInterval};
  CallCounts counts_;
  std::unique_ptr<TaskThread> collectives_;
  std::vector<std::unique_ptr<TaskThread>> sends_;  // per peer; created at first use
  std::vector<std::unique_ptr<TaskThread>> recvs_;
};

}  // namespace caravan::messages
