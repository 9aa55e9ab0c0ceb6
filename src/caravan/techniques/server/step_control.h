#pragma once

#include <optional>
#include <vector>

#include "caravan/comm/tensor.h"
#include "caravan/techniques/server/worker_clocks.h"

namespace caravan {

/// Asks rank 0 whether this worker may begin its next step; on rank 0, also answers all workers whenever it is polled.
/// A request has 16 bytes, an answer 8.
class StepControl {
 public:
  /// `comm` has all workers, is used only by this, and outlives it.
  explicit StepControl(Communicator& comm) : comm_(comm) {}

  /// Begins a period that ends with the next drain. Every rank calls it with the same arguments, those of WorkerClocks.
  void begin(const std::vector<int64_t>& clocks, int64_t staleness, int64_t drain_at);
  void ask(int64_t clock, bool wants_drain);
  /// The answer to the last request, once it has arrived.
  std::optional<WorkerClocks::Answer> answer();
  /// Receives requests and answers them. Returns true if a message was handled. Throws the error of a lost peer.
  bool poll();
  /// On rank 0: whether every worker was told to drain; elsewhere true.
  bool is_done() const noexcept { return clocks_.empty() || clocks_.front().is_drained(); }
  /// On rank 0; elsewhere 0.
  int64_t largest_lead() const noexcept { return clocks_.empty() ? 0 : clocks_.front().largest_lead(); }

 private:
  struct Question {
    at::Tensor numbers;  ///< clock, wants_drain
    Work received;
    bool is_open = false;
  };
  void receive(int worker);
  void send_answers();

  Communicator& comm_;
  std::vector<WorkerClocks> clocks_;  ///< on rank 0: one
  std::vector<Question> questions_;   ///< on rank 0, by worker
  std::optional<WorkerClocks::Answer> own_;
  at::Tensor answer_;
  Work answered_;
  bool is_asking_ = false;
};

}  // namespace caravan
