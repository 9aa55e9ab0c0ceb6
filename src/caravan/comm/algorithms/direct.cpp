#include "caravan/comm/algorithms/direct.h"

namespace caravan::algorithms {
namespace {

/// Calls each(peer) for all other ranks, beginning with the next one: so that not all ranks begin with the same.
template <class Each>
void for_each_peer(int rank, int size, Each each) {
  for (int distance = 1; distance < size; ++distance) each((rank + distance) % size);
}

void scatter(Schedule& schedule, int rank, const Parts& parts) {
  for_each_peer(rank, parts.size(), [&](int peer) {
    schedule.send(0, peer, parts[peer]);
    schedule.add(0, peer, parts[rank]);
  });
}

void gather(Schedule& schedule, size_t step, int rank, const Parts& parts) {
  for_each_peer(rank, parts.size(), [&](int peer) {
    schedule.send(step, peer, parts[rank]);
    schedule.recv(step, peer, parts[peer]);
  });
}

}  // namespace

Schedule direct_reduce_scatter(int rank, const Parts& parts) {
  Schedule schedule(1);
  scatter(schedule, rank, parts);
  return schedule;
}

Schedule direct_all_gather(int rank, const Parts& parts) {
  Schedule schedule(1);
  gather(schedule, 0, rank, parts);
  return schedule;
}

Schedule direct_all_reduce(int rank, const Parts& parts) {
  Schedule schedule(2);
  scatter(schedule, rank, parts);
  gather(schedule, 1, rank, parts);
  return schedule;
}

Schedule direct_all_to_all(int rank, std::span<const int64_t> send_counts, std::span<const int64_t> recv_counts) {
  const Parts received(recv_counts);
  const Parts sent(send_counts);
  const int64_t input = received.all().end();  // `in` lies behind `out` in the working buffer
  const auto from = [&](int peer) { return Range{input + sent[peer].begin, sent[peer].count}; };
  Schedule schedule(1);
  schedule.send(0, rank, from(rank));
  schedule.recv(0, rank, received[rank]);
  for_each_peer(rank, sent.size(), [&](int peer) {
    schedule.send(0, peer, from(peer));
    schedule.recv(0, peer, received[peer]);
  });
  return schedule;
}

Schedule direct_broadcast(int rank, int size, int64_t count, int root) {
  Schedule schedule(1);
  if (rank == root) {
    for_each_peer(rank, size, [&](int peer) { schedule.send(0, peer, {0, count}); });
  } else {
    schedule.recv(0, root, {0, count});
  }
  return schedule;
}

Schedule direct_reduce(int rank, const Parts& parts, int root) {
  Schedule schedule(2);
  scatter(schedule, rank, parts);
  if (rank == root) {
    for_each_peer(rank, parts.size(), [&](int peer) { schedule.recv(1, peer, parts[peer]); });
  } else {
    schedule.send(1, root, parts[rank]);
  }
  return schedule;
}

}  // namespace caravan::algorithms
