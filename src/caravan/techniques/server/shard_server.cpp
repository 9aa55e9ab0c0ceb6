#include "caravan/techniques/server/shard_server.h"

#include <algorithm>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include "caravan/comm/operations.h"

namespace caravan {

int64_t shard_count(const Bucket& bucket, int rank) { return bucket.fill.front().counts[static_cast<size_t>(rank)]; }

int64_t shard_offset(const Bucket& bucket, int rank) { return part_begin(bucket.fill.front().counts, rank); }

ShardServer::ShardServer(FlatState& state, Optimizer& optimizer, const ServerLinks& links, Options options)
    : state_(state),
      optimizer_(optimizer),
      links_(links),
      options_(std::move(options)),
      rank_(links.pushes->rank()),
      pool_(*links.pushes, false),
      servers_(static_cast<size_t>(links.pushes->size()), false) {
  for (const Bucket& bucket : state.layout.buckets()) {
    for (int rank = 0; rank < links.pushes->size(); ++rank) {
      if (bucket.is_trained && shard_count(bucket, rank) > 0) servers_[static_cast<size_t>(rank)] = true;
    }
  }
}

void ShardServer::begin(const std::vector<int64_t>& clocks) {
  clocks_.assign(state_.layout.buckets().size(), ShardClock(clocks, options_.staleness));
  peers_.assign(clocks.size(), Peer{});
  staleness_ = {};
  for (int worker = 0; worker < static_cast<int>(clocks.size()); ++worker) {
    const bool pushes = worker != rank_ && is_server(rank_);
    if (pushes) receive_header(worker);
    peers_[static_cast<size_t>(worker)].has_stopped = !pushes;
  }
}

void ShardServer::receive_header(int worker) {
  Peer& peer = peers_[static_cast<size_t>(worker)];
  peer.header = at::empty({1}, at::kLong);
  peer.received = recv_async(*links_.pushes, peer.header, worker, "push");
}

bool ShardServer::poll() {
  const at::NoGradGuard no_grad;
  bool has_come = false;
  for (int worker = 0; worker < links_.pushes->size(); ++worker) {
    while (receive(worker)) has_come = true;
  }
  // After handling all arrived messages: an update of one worker may allow another one to read.
  for (int worker = 0; worker < links_.pushes->size(); ++worker) {
    while (answer(worker)) has_come = true;
  }
  return has_come;
}

/// Handles the next message of `worker`, if it has arrived.
bool ShardServer::receive(int worker) {
  Peer& peer = peers_[static_cast<size_t>(worker)];
  if (peer.has_stopped || !peer.received.done()) return false;
  peer.received.wait();
  if (peer.gradients.defined()) {
    apply(worker, bucket(peer.bucket), peer.gradients);
    peer.unanswered.push_back(peer.bucket);
    peer.gradients = at::Tensor();
    receive_header(worker);
    return true;
  }
  const auto index = peer.header.item<int64_t>();
  peer.bucket = static_cast<int>(index);
  if (index == kNoMore) {
    peer.has_stopped = true;
    return true;
  }
  peer.gradients = pool_.take(shard_count(bucket(peer.bucket), rank_), state_.gradients.scalar_type());
  peer.received = recv_async(*links_.pushes, peer.gradients, worker, "gradients of a worker");
  return true;
}

/// Sends the values that `worker` has waited for longest, if it may read them. A stopped worker may always read: it
/// drains.
bool ShardServer::answer(int worker) {
  Peer& peer = peers_[static_cast<size_t>(worker)];
  if (peer.unanswered.empty()) return false;
  const int index = peer.unanswered.front();
  ShardClock& clock = clocks_[static_cast<size_t>(index)];
  if (!peer.has_stopped && !clock.may_read(worker)) return false;
  peer.unanswered.pop_front();
  clock.read(worker);
  const Bucket& of = bucket(index);
  // A copy: the next update must not change values in flight.
  const at::Tensor values = pool_.take(of.sharded_count, state_.kept_leaves[static_cast<size_t>(index)].scalar_type());
  values.copy_(state_.values.narrow(of.sharded_offset, of.sharded_count));
  send_async(*links_.values, values, worker, "values for a worker");
  return true;
}

void ShardServer::apply(int worker, const Bucket& bucket, const at::Tensor& gradients) {
  const at::NoGradGuard no_grad;
  ShardClock& clock = clocks_[static_cast<size_t>(bucket.index)];
  state_.gradients.narrow(bucket.sharded_offset, bucket.sharded_count).copy_(gradients);
  const double lr = options_.learning_rate(clock.slowest());
  staleness_.add(clock.apply(worker));
  optimizer_.step(bucket, optimizer_.num_steps() + clock.version(), lr);
}

bool ShardServer::read_own(const Bucket& bucket) {
  if (bucket.sharded_count == 0) return true;
  ShardClock& clock = clocks_[static_cast<size_t>(bucket.index)];
  if (!clock.may_read(rank_)) return false;
  const at::NoGradGuard no_grad;
  clock.read(rank_);
  state_.kept_leaves[static_cast<size_t>(bucket.index)]
      .narrow(0, bucket.own_offset, bucket.sharded_count)
      .copy_(state_.values.narrow(bucket.sharded_offset, bucket.sharded_count));
  return true;
}

bool ShardServer::is_done() const noexcept {
  return std::ranges::all_of(peers_, [](const Peer& peer) { return peer.has_stopped && peer.unanswered.empty(); });
}

}  // namespace caravan
