#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "caravan/comm/algorithms/selection.h"
#include "caravan/comm/communicator.h"
#include "caravan/comm/level.h"
#include "caravan/comm/messages/member.h"

namespace caravan::messages {

/// A communicator over a Transport: collectives on one lane, the messages to and from each peer on lanes of their own.
class MessageCommunicator final : public Communicator, public Level {
 public:
  static std::shared_ptr<MessageCommunicator> make_world(std::shared_ptr<Member> member);
  MessageCommunicator(std::shared_ptr<Member> member, Seat seat, Lineage lineage = {});
  ~MessageCommunicator() override;

  std::string_view backend() const noexcept override { return member_->backend(); }
  std::shared_ptr<Communicator> split(std::span<const int> members, std::string name) override;
  void progress() override;
  void abort(std::string_view reason) noexcept override;
  bool select(std::shared_ptr<const algorithms::SelectionTable> table) override;

  void end(const std::exception_ptr& error) noexcept override { fail(error); }
  void end_world(std::string_view fact) noexcept override;
  void pause(const std::function<bool()>& is_done, std::chrono::microseconds at_most) override;
  void drive_also(std::function<Besides()> work) override { member_->drive_also(std::move(work)); }
  LateRank look_for(int rank) const override;

  /// Completes the operations that the lanes have done.
  void collect() noexcept;
  /// Ends everything outstanding, and every later call, with an error that says `fact`.
  void fail_with_peer_error(const std::string& fact) noexcept;

 private:
  void start(const std::shared_ptr<Operation>& operation) override;
  void finish(Operation& operation) override;

  void enqueue(std::unique_ptr<Lane>& lane, const std::shared_ptr<Job>& job);
  /// Returns when `is_done()`; a wait that lasts too long, or a failure elsewhere, ends everything and thereby it.
  void wait(Lane& lane, const std::function<bool()>& is_done);
  void collect(Lane& lane) noexcept;
  algorithms::Choice choose(const Operation& operation) const;
  std::unique_ptr<Lane>& lane_of(const Operation& operation);
  std::vector<Lane*> lanes() const;
  /// The error that a failed job means for this communicator; tells the other ranks where they cannot know.
  std::exception_ptr error_of(const Job& job) noexcept;
  std::exception_ptr late_error(const Descriptor& call, std::span<const int> ranks) const;
  std::exception_ptr lost_error(const Job& job, const PeerLost& lost);
  /// Whether another rank has said so; then everything is ended.
  bool failed_elsewhere(Lane& lane);
  /// The rank that has destroyed this communicator without coming to `call`; -1 if there is none.
  int rank_that_left(const Descriptor& call);
  void leave() noexcept;
  /// The name of this communicator's failure in the store.
  std::string scope() const;
  void fail(const std::exception_ptr& error) noexcept;

  std::shared_ptr<Member> member_;
  Seat seat_;
  int exceptions_at_birth_;
  std::shared_ptr<const algorithms::SelectionTable> algorithms_;
  std::exception_ptr error_;  // the first
  std::chrono::steady_clock::time_point last_look_;
  std::unique_ptr<Lane> collectives_;
  uint64_t num_collectives_ = 0;
  std::vector<uint64_t> num_sends_;
  std::vector<uint64_t> num_recvs_;
  std::vector<std::unique_ptr<Lane>> sends_;  // per peer; made when first used
  std::vector<std::unique_ptr<Lane>> recvs_;
};

}  // namespace caravan::messages
