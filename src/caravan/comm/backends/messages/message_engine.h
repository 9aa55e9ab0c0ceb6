#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "caravan/comm/backends/messages/failure/connection_watch.h"
#include "caravan/comm/backends/messages/failure/notices.h"
#include "caravan/comm/backends/messages/group.h"
#include "caravan/comm/backends/messages/message_exchange.h"
#include "caravan/comm/backends/messages/tag_ids.h"
#include "caravan/comm/backends/unwinding.h"
#include "caravan/comm/level.h"
#include "caravan/comm/options.h"
#include "caravan/comm/store/store.h"

namespace caravan::messages {

class MessageCommunicator;

/// State shared by all communicators of one rank that were split from one world: its connections, its notices, and what
/// is in flight.
class MessageEngine {
 public:
  /// `transport` and `store` may be null if `size` is 1; `backend` is the name of the communicators' back-end.
  MessageEngine(std::string_view backend, std::shared_ptr<Transport> transport, std::shared_ptr<Store> store, int rank,
                int size, const CommOptions& options);
  /// Waits briefly for the other ranks, so that closing the connections does not cut off messages in flight.
  ~MessageEngine();
  MessageEngine(const MessageEngine&) = delete;
  MessageEngine& operator=(const MessageEngine&) = delete;

  std::string_view backend() const noexcept { return backend_; }
  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  const CommOptions& options() const noexcept { return options_; }
  /// The table of the options, or the built-in one.
  const std::shared_ptr<const algorithms::SelectionTable>& algorithms() const noexcept { return options_.algorithms; }
  const std::shared_ptr<Transport>& transport() const noexcept { return transport_; }
  CompletionEvent& completions() noexcept { return completions_; }
  Notices& notices() noexcept { return notices_; }

  void add(MessageCommunicator& communicator) { communicators_.push_back(&communicator); }
  void remove(MessageCommunicator& communicator) { std::erase(communicators_, &communicator); }
  /// See Level.
  void set_side_work(std::function<SideWork()> work) { side_work_ = std::move(work); }
  SideWork drive_side_work() { return side_work_ ? side_work_() : SideWork::none; }

  /// Completes the operations of all communicators whose tasks have ended. Ends all communicators if a rank of the
  /// world is lost.
  void collect() noexcept;

  /// Ids of the communicators of this rank.
  TagIds& ids() noexcept { return ids_; }

  /// Publishes `text` as the failure of the whole world. Returns the text that was published first.
  std::string publish_world_failure(const std::string& text) noexcept;
  /// A communicator has failed: its messages in flight may never be received.
  void note_failure() noexcept { is_clean_ = false; }
  bool has_failed() const noexcept { return has_failed_; }

  /// Ends all communicators of this rank with `text`, and closes its connections.
  void close(const std::string& text) noexcept;

 private:
  void shut_down() noexcept;

  std::string backend_;
  std::shared_ptr<Transport> transport_;
  Notices notices_;
  int rank_;
  int size_;
  CommOptions options_;
  Unwinding is_unwinding_;
  CompletionEvent completions_;
  std::function<SideWork()> side_work_;
  std::vector<MessageCommunicator*> communicators_;
  TagIds ids_;
  bool is_clean_;  // every message that was sent has been or will be received
  bool has_failed_ = false;
  std::unique_ptr<ConnectionWatch> watch_;
};

}  // namespace caravan::messages
