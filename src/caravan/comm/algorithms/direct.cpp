#include "caravan/comm/algorithms/direct.h"

namespace caravan::algorithms {
namespace {

/// Calls each(peer) for all other ranks, beginning with the next one, so that not all ranks begin with the same peer.
template <class Each>
void for_each_peer(int rank, int size, Each each) {
  for (int distance = 1; distance < size; ++distance) each((rank + distance) % size);
}

void scatter(MessagePlan& plan, int rank, const Parts& parts) {
  for_each_peer(rank, parts.size(), [&](int peer) {
    plan.send(0, peer, parts[peer]);
    plan.add(0, peer, parts[rank]);
  });
}

void gather(MessagePlan& plan, size_t step, int rank, const Parts& parts) {
  for_each_peer(rank, parts.size(), [&](int peer) {
    plan.send(step, peer, parts[rank]);
    plan.recv(step, peer, parts[peer]);
  });
}

}  // namespace

MessagePlan direct_reduce_scatter(int rank, const Parts& parts) {
  MessagePlan plan(1);
  scatter(plan, rank, parts);
  return plan;
}

MessagePlan direct_all_gather(int rank, const Parts& parts) {
  MessagePlan plan(1);
  gather(plan, 0, rank, parts);
  return plan;
}

MessagePlan direct_all_reduce(int rank, const Parts& parts) {
  MessagePlan plan(2);
  scatter(plan, rank, parts);
  gather(plan, 1, rank, parts);
  return plan;
}

MessagePlan direct_all_to_all(int rank, std::span<const int64_t> send_counts, std::span<const int64_t> recv_counts) {
  const Parts received(recv_counts);
  const Parts sent(send_counts);
  const int64_t input = received.all().end();  // `in` follows `out` in the working buffer
  const auto from = [&](int peer) { return Range{input + sent[peer].begin, sent[peer].count}; };
  MessagePlan plan(1);
  plan.send(0, rank, from(rank));
  plan.recv(0, rank, received[rank]);
  for_each_peer(rank, sent.size(), [&](int peer) {
    plan.send(0, peer, from(peer));
    plan.recv(0, peer, received[peer]);
  });
  return plan;
}

MessagePlan direct_broadcast(int rank, int size, int64_t count, int root) {
  MessagePlan plan(1);
  if (rank == root) {
    for_each_peer(rank, size, [&](int peer) { plan.send(0, peer, {0, count}); });
  } else {
    plan.recv(0, root, {0, count});
  }
  return plan;
}

MessagePlan direct_reduce(int rank, const Parts& parts, int root) {
  MessagePlan plan(2);
  scatter(plan, rank, parts);
  if (rank == root) {
    for_each_peer(rank, parts.size(), [&](int peer) { plan.recv(1, peer, parts[peer]); });
  } else {
    plan.send(1, root, parts[rank]);
  }
  return plan;
}

}  // namespace caravan::algorithms
