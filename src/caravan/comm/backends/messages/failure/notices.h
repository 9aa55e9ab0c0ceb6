#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "caravan/comm/calls/call_counts.h"
#include "caravan/comm/group_info.h"
#include "caravan/comm/store/store.h"

namespace caravan::messages {

/// Notices that the ranks of a world exchange through its store: why something failed, which communicators a rank has
/// destroyed, and the progress of a rank that others wait for. A scope is the world or one communicator, and is unique
/// within a world. Nothing here throws: once the store is lost, notices are neither sent nor received.
class Notices {
 public:
  static constexpr const char* kWorld = "world";

  /// `store` is null in a world of one rank.
  explicit Notices(std::shared_ptr<Store> store) : store_(std::move(store)) {}

  /// Publishes why `scope` cannot continue, unless another rank has. Returns the text that was published first.
  std::string publish_failure(const std::string& scope, const std::string& text) noexcept;
  /// The published text, "" if there is none.
  std::string failure(const std::string& scope) noexcept;

  /// Publishes that this rank has destroyed the communicator `scope` and what it had issued; with null `counts`, for a
  /// failed communicator, only that it is gone. The last rank removes all keys of the scope.
  void publish_departure(const std::string& scope, const GroupInfo& group, const CallCounts* counts) noexcept;
  /// The rank of `scope` that has destroyed the communicator without issuing its side of `call`, a call of this rank;
  /// -1 if there is none.
  int find_departed(const std::string& scope, const GroupInfo& group, const CallCounts& counts,
                    const Descriptor& call) noexcept;

  /// How often any rank has asked who is late; 0 if that is not known.
  int64_t num_questions() noexcept { return add_questions(0); }
  int64_t ask_who_is_late() noexcept { return add_questions(1); }
  /// The answer: what this rank has issued in `scope`.
  void publish_progress(const std::string& scope, int world_rank, const CallCounts& counts) noexcept;
  /// The last answer of `world_rank`.
  std::optional<std::string> progress(const std::string& scope, int world_rank) noexcept;

 private:
  template <class Result, class Call>
  Result ask_store(Result otherwise, const Call& call) noexcept;
  std::string get(const std::string& key);
  int64_t add_questions(int64_t amount) noexcept;

  std::shared_ptr<Store> store_;
  bool store_is_lost_ = false;
};

}  // namespace caravan::messages
