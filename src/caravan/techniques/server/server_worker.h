#pragma once

#include <utility>
#include <vector>

#include "caravan/comm/tensor.h"
#include "caravan/engine/stages/exchange.h"
#include "caravan/techniques/server/shard_server.h"

namespace caravan {

/// The worker in a rank: pushes the gradients of each bucket to the servers, and receives the new values into its
/// unsharded parameters.
///
/// Without clipping, a bucket is pushed as soon as backward has completed it, and its values arrive during the rest of
/// backward and the next forward. A worker that clips its gradients pushes all of them after backward, when it knows
/// their norm.
class ServerWorker {
 public:
  /// All arguments outlive this.
  ServerWorker(FlatState& state, ShardServer& server, const ServerLinks& links, double clip_norm);

  /// The unsharded parameters have the values that the servers hold now.
  void begin();
  /// As StepExchange::push.
  void push(const Bucket& bucket, const at::Tensor& gradients);
  /// Whether the unsharded parameters have the values of all servers; also true if nothing was pushed since then.
  /// Throws the error of a lost peer.
  bool has_values(const Bucket& bucket);
  /// Call it after backward. Returns the norm of this worker's gradient. With clipping, pushes the gradient, unless it
  /// is not finite.
  double finish_step();
  /// Tells the servers that no push follows until begin().
  void stop();
  /// Whether no pull is pending.
  bool is_done();

 private:
  struct Pull {
    std::vector<Work> received{};
    bool reads_own = false;
  };
  void send(const Bucket& bucket, const at::Tensor& gradients);

  FlatState& state_;
  ShardServer& server_;
  const ServerLinks& links_;
  double clip_norm_;
  double squares_ = 0;
  std::vector<std::pair<const Bucket*, at::Tensor>> held_;  ///< until the norm is known
  std::vector<Pull> pulls_;                                 ///< by bucket
};

}  // namespace caravan
