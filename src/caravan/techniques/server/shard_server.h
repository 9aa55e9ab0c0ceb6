#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "caravan/comm/tensor.h"
#include "caravan/engine/flat/flat.h"
#include "caravan/engine/flat/pool.h"
#include "caravan/optim/optimizer.h"
#include "caravan/step/staleness.h"
#include "caravan/techniques/server/worker_clocks.h"

namespace caravan {

/// Whether coordinate `rank` holds elements of `bucket`, their number, and where they begin in the unsharded buffer.
int64_t shard_count(const Bucket& bucket, int rank);
int64_t shard_offset(const Bucket& bucket, int rank);

/// See ShardServer.
inline constexpr int64_t kNoMore = -1;

/// Two communicators of all workers, in the order of their coordinates, used only by ShardServer and ServerWorker: one
/// carries pushes, the other pulled values, so that messages of a pair of ranks are not mixed up.
struct ServerLinks {
  std::shared_ptr<Communicator> pushes;
  std::shared_ptr<Communicator> values;
};

/// The server in a rank: immediately applies each gradient that a worker pushes to its shard of a bucket, and sends
/// that worker the new values as soon as it may read them. It has no thread: it serves whenever it is polled.
///
/// Receives from a worker: the index of the bucket (8 bytes), then the gradients of the shard; kNoMore instead of an
/// index: no more until the next begin(). Sends: the values, in the unsharded dtype, in the order of its gradients.
class ShardServer {
 public:
  struct Options {
    int64_t staleness = kUnbounded;
    std::function<double(int64_t step)> learning_rate;  ///< for the slowest worker's step, from 0
  };

  /// All arguments outlive this.
  ShardServer(FlatState& state, Optimizer& optimizer, const ServerLinks& links, Options options);

  /// Whether this rank, or rank `rank`, holds any elements.
  bool is_server(int rank) const { return servers_[static_cast<size_t>(rank)]; }

  /// Begins serving until every worker has stopped. `clocks`: the steps that each has done.
  void begin(const std::vector<int64_t>& clocks);
  /// Receives and applies gradients and answers them. Returns true if a message was handled. Throws the error of a
  /// lost peer.
  bool poll();
  /// Whether every other worker has stopped and has received all values that it waits for.
  bool is_done() const noexcept;

  /// Applies a flat gradient of the worker in this rank.
  void apply_own(const Bucket& bucket, const at::Tensor& gradients) { apply(rank_, bucket, gradients); }
  /// Copies this rank's values into its part of the bucket's unsharded buffer. Returns false if it may not read them
  /// yet.
  bool read_own(const Bucket& bucket);

  /// Since begin().
  const StalenessCounts& staleness() const noexcept { return staleness_; }

 private:
  struct Peer {
    at::Tensor header{};
    at::Tensor gradients{};  ///< defined: they are in flight
    Work received{};         ///< header or gradients
    int bucket = -1;
    bool has_stopped = false;
    std::deque<int> unanswered{};  ///< buckets, in the order of their gradients
  };
  void receive_header(int worker);
  bool receive(int worker);
  bool answer(int worker);
  void apply(int worker, const Bucket& bucket, const at::Tensor& gradients);
  const Bucket& bucket(int index) const { return state_.layout.buckets()[static_cast<size_t>(index)]; }

  FlatState& state_;
  Optimizer& optimizer_;
  const ServerLinks& links_;
  Options options_;
  int rank_;
  BufferPool pool_;
  std::vector<bool> servers_;
  std::vector<ShardClock> clocks_;  ///< by bucket
  std::vector<Peer> peers_;         ///< by worker
  StalenessCounts staleness_;
};

}  // namespace caravan
