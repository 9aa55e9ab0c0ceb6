#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "caravan/comm/level.h"
#include "caravan/comm/messages/exchange.h"
#include "caravan/comm/messages/seat.h"
#include "caravan/comm/messages/watch.h"
#include "caravan/comm/options.h"
#include "caravan/comm/store.h"

namespace caravan::messages {

class MessageCommunicator;

/// This rank as a member of one world: what all communicators split from it share.
class Member {
 public:
  /// `transport` and `store` may be null if `size` is 1; `backend` is what the communicators call themselves.
  Member(std::string_view backend, std::shared_ptr<Transport> transport, std::shared_ptr<Store> store, int rank,
         int size, const CommOptions& options);
  /// Takes leave: waits a little for the other ranks, so that nothing of them is cut off by a closed connection.
  ~Member();
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;

  std::string_view backend() const noexcept { return backend_; }
  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  const CommOptions& options() const noexcept { return options_; }
  /// That of the options, or the built-in one.
  const std::shared_ptr<const algorithms::SelectionTable>& algorithms() const noexcept { return options_.algorithms; }
  const std::shared_ptr<Transport>& transport() const noexcept { return transport_; }
  Bell& bell() noexcept { return bell_; }

  void add(MessageCommunicator& communicator) { communicators_.push_back(&communicator); }
  void remove(MessageCommunicator& communicator) { std::erase(communicators_, &communicator); }
  /// Done by whoever waits, too.
  void drive_also(std::function<Besides()> work) { also_ = std::move(work); }
  Besides besides() { return also_ ? also_() : Besides::nothing; }

  /// Completes the operations of all communicators that the lanes have done; ends all if a rank of the world is lost.
  void collect() noexcept;

  /// The least number that no communicator of this rank has had yet.
  int next_id() const noexcept { return next_id_; }
  void use_id(int id) noexcept { next_id_ = id + 1; }

  static constexpr const char* kWorld = "world";
  /// Tells all ranks why nothing goes on, in the whole world (scope kWorld) or one communicator. The first text
  /// stands; it is returned. Never throws: a store that is lost takes no text.
  std::string publish_failure(const std::string& scope, const std::string& text) noexcept;
  /// The text that stands, "" if there is none.
  std::string failure(const std::string& scope) noexcept;

  /// Tells the other ranks of a communicator that rank `rank` of it has destroyed it, and what it had called before:
  /// `counts` is the communicator's own to read. Their side: whether anybody has, and one rank's text ("": it has not).
  void publish_leave(const std::string& scope, int rank, const std::string& counts) noexcept;
  bool has_somebody_left(const std::string& scope) noexcept;
  std::string leave(const std::string& scope, int rank) noexcept;

  /// A communicator has failed: what is on its way there may never be received.
  void note_failure() noexcept { is_clean_ = false; }

  /// Ends everything of this rank, with `text`, and closes its connections.
  void close(const std::string& text) noexcept;

 private:
  void take_leave() noexcept;

  std::string backend_;
  std::shared_ptr<Transport> transport_;
  std::shared_ptr<Store> store_;
  int rank_;
  int size_;
  CommOptions options_;
  int exceptions_at_birth_;
  Bell bell_;
  std::function<Besides()> also_;
  std::vector<MessageCommunicator*> communicators_;
  int next_id_ = 1;  // 0: the world
  bool store_is_lost_ = false;
  bool is_clean_;  // no message was sent in vain
  bool failed_ = false;
  std::unique_ptr<Watch> watch_;
};

}  // namespace caravan::messages
