#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "caravan/comm/backends/messages/failure/last_calls.h"
#include "caravan/comm/backends/messages/failure/notices.h"
#include "caravan/comm/backends/wait_policy.h"
#include "caravan/comm/communicator.h"
#include "caravan/comm/options.h"
#include "caravan/comm/store/store.h"

namespace caravan::hierarchical {

class HierarchicalCommunicator;

/// What all hierarchical communicators of one rank share that were split from one world.
class HierarchicalEngine {
 public:
  /// `local` is the world of this host, `global` that of all ranks (null on one host); `backend` is the name of the
  /// communicators' back-end.
  HierarchicalEngine(std::string backend, const std::shared_ptr<Store>& store, int rank, int size,
                     const CommOptions& options, std::shared_ptr<Communicator> local,
                     std::shared_ptr<Communicator> global);

  ~HierarchicalEngine();
  HierarchicalEngine(const HierarchicalEngine&) = delete;
  HierarchicalEngine& operator=(const HierarchicalEngine&) = delete;

  std::string_view backend() const noexcept { return backend_; }
  const CommOptions& options() const noexcept { return options_; }
  Communicator& local() const noexcept { return *local_; }
  messages::Notices& notices() noexcept { return notices_; }
  messages::LastCalls& last_calls() noexcept { return last_calls_; }

  void add(HierarchicalCommunicator& communicator) { communicators_.push_back(&communicator); }
  void remove(HierarchicalCommunicator& communicator) { std::erase(communicators_, &communicator); }
  size_t outstanding() const noexcept;
  bool has_failed() const noexcept { return has_failed_; }

  /// Advances all communicators once. Returns true if any made progress.
  bool progress() noexcept;
  /// Checks for failures elsewhere and answers ranks that ask who is late, once per kStoreCheckInterval at most.
  void check_store() noexcept;
  /// Ends all communicators of this rank with `text`.
  void close(const std::string& text) noexcept;

  /// Asks all ranks how far they are in the communicator `scope`; `counts` is this rank's own answer. Returns those of
  /// `world_ranks` that give no answer for which `is_far_enough` although they had time for it.
  std::vector<int> find_late(const std::string& scope, const CallCounts& counts, std::vector<int> world_ranks,
                             const std::function<bool(const std::string& answer)>& is_far_enough) noexcept;

 private:
  std::string backend_;
  int rank_;
  CommOptions options_;
  std::shared_ptr<Communicator> local_;
  std::shared_ptr<Communicator> global_;
  messages::Notices notices_;
  messages::LastCalls last_calls_;
  std::vector<HierarchicalCommunicator*> communicators_;
  Periodic store_check_{kStoreCheckInterval};
  int64_t num_questions_ = 0;  // answered or asked
  bool has_failed_ = false;
};

}  // namespace caravan::hierarchical
