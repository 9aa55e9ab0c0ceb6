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

/// Whether coordinate `rank` holds elements of `bucket`, how many, and where they begin in the leaf buffer.
int64_t shard_count(const Bucket& bucket, int rank);
int64_t shard_offset(const Bucket& bucket, int rank);

/// See ShardServer.
inline constexpr int64_t kNoMore = -1;

/// Two communicators of all workers, in the order of their coordinates, used by ShardServer and ServerWorker alone: one
/// carries pushes, the other pulled values, so that messages of a pair of ranks are not mixed up.
struct ServerLinks {
  std::shared_ptr<Communicator> pushes;
  std::shared_ptr<Communicator> values;
};

/// The server in a rank: applies each gradient that a worker pushes to its shard of a bucket at once, and sends that
/// worker the new values, as soon as it may read them. It has no thread: it serves whenever it is polled.
///
/// From a worker: the index of the bucket (8 bytes), then the gradients of the shard; kNoMore instead of an index: no
/// more until the next begin(). To it: the values, in the dtype of the leaves, in the order of its gradients.
class ShardServer {
 public:
  struct Options {
    int64_t staleness = kUnbounded;
    std::function<double(int64_t step)> learning_rate;  ///< of the slowest worker's step, from 0
  };

  /// All outlive this.
  ShardServer(FlatState& state, Optimizer& optimizer, const ServerLinks& links, Options options);

  /// Whether this rank, or rank `rank`, holds any elements.
  bool is_server(int rank) const { return servers_[static_cast<size_t>(rank)]; }

  /// Until every worker has stopped. `clocks`: the steps that each has done.
  void begin(const std::vector<int64_t>& clocks);
  /// Receives and applies gradients and answers them. Returns true if a message was handled. Throws the error of a
  /// lost peer.
  bool poll();
  /// Every other worker has stopped and has got all values that it waits for.
  bool is_done() const noexcept;

  /// A gradient of the worker in this rank, flat.
  void apply_own(const Bucket& bucket, const at::Tensor& gradients) { apply(rank_, bucket, gradients); }
  /// Copies this rank's values into its part of the bucket's leaf, unless it may not read them yet: then false.
  bool read_own(const Bucket& bucket);

  /// Since begin().
  const StalenessCounts& staleness() const noexcept { return staleness_; }

 private:
  struct Peer {
    at::Tensor header{};
    at::Tensor gradients{};  ///< defined: they are on their way
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
