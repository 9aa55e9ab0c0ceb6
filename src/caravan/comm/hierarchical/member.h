#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "caravan/comm/communicator.h"
#include "caravan/comm/messages/last_calls.h"
#include "caravan/comm/messages/member.h"
#include "caravan/comm/options.h"
#include "caravan/comm/store.h"

namespace caravan::hierarchical {

class HierarchicalCommunicator;

/// This rank as a member of one world of two levels: what all communicators split from it share.
class Member {
 public:
  /// `inner` is the world of this host, `outer` the one of all ranks; `backend` is what the communicators call
  /// themselves.
  Member(std::string backend, std::shared_ptr<Store> store, int rank, int size, const CommOptions& options,
         std::shared_ptr<Communicator> inner, std::shared_ptr<Communicator> outer);

  ~Member();
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;

  std::string_view backend() const noexcept { return backend_; }
  int rank() const noexcept { return rank_; }
  const CommOptions& options() const noexcept { return options_; }
  Communicator& inner() const noexcept { return *inner_; }
  /// Where failures and leaves are told to ranks of all hosts.
  messages::Member& board() noexcept { return board_; }
  messages::LastCalls& last_calls() noexcept { return last_calls_; }

  void add(HierarchicalCommunicator& communicator) { communicators_.push_back(&communicator); }
  void remove(HierarchicalCommunicator& communicator) { std::erase(communicators_, &communicator); }
  size_t outstanding() const noexcept;

  /// Advances everything once. True if anything was done.
  bool progress() noexcept;
  /// Looks for failures elsewhere and answers who asks, at most every 250 ms: it costs messages to the store.
  void look() noexcept;
  /// Ends everything of this rank, with `text`.
  void close(const std::string& text) noexcept;

  /// Asks the ranks of the world how far they are on the communicator `scope`, having told it of this one: those of
  /// `world_ranks` that give no answer for which `is_far_enough` while they had time to look.
  std::vector<int> ask(const std::string& scope, const std::string& own, std::vector<int> world_ranks,
                       const std::function<bool(const std::string& answer)>& is_far_enough) noexcept;

 private:
  void tell(const std::string& scope, const std::string& text);

  std::string backend_;
  std::shared_ptr<Store> store_;
  int rank_;
  CommOptions options_;
  std::shared_ptr<Communicator> inner_;
  std::shared_ptr<Communicator> outer_;
  messages::Member board_;
  messages::LastCalls last_calls_;
  std::vector<HierarchicalCommunicator*> communicators_;
  std::chrono::steady_clock::time_point next_look_{};
  int64_t questions_ = 0;  // seen or asked
};

}  // namespace caravan::hierarchical
