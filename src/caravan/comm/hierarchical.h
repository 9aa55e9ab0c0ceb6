#pragma once

#include <memory>
#include <string>

#include "caravan/comm/communicator.h"
#include "caravan/comm/options.h"
#include "caravan/comm/rendezvous.h"

namespace caravan {

/// The world of processes of several hosts: shared memory inside each, messages of `outer` ("gloo" or "mpi") between
/// them. Every rank of `info` calls it. A host is what shares a kernel, a network namespace and a user, or, where
/// `host` is given, the ranks that give the same: any numbers of ranks, whatever their order.
///
/// With H hosts of L ranks, x = bytes of `in`, and "level" for ranks of equal place in their hosts (where hosts have
/// equal numbers of ranks; otherwise the first rank of each host, its leader, crosses for all), steps and bytes that a
/// host sends to others:
///   all_reduce      reduce_scatter in the host, all_reduce of each level, all_gather in the host; below 64 KiB, or by
///                   leaders: reduce to the leader, all_reduce of leaders, broadcast. 2(H-1)/H x.
///   reduce_scatter  reduce_scatter in the host (parts of a level together), then of each level: (H-1)/H x. By leaders:
///                   reduce, reduce_scatter of leaders, parts handed out: the same.
///   all_gather      all_gather of each level, then in the host: (H-1) L x. By leaders: in the host, of leaders,
///                   broadcast: the same.
///   broadcast       in the root's host, along the root's level or the leaders, in the other hosts: x, once a host.
///   reduce          in each host to the rank that crosses, which reduces to the root's host: x, once a host.
///   all_to_all      at once in the host and between ranks of different hosts: only what is for other hosts.
///   send, recv      in the host by shared memory, else by messages.
///   barrier         in the host, of leaders, in the host.
/// These are the bytes of the `outer` collectives by ring; Traffic counts as in every other back-end.
///
///   - Sums are taken by place within the host, then by host, hosts in the order of their first ranks; the result has
///     the same bits on every rank and in every run, and differs by rounding from that of one level. bf16 and fp16 add
///     in fp32 on both levels and are rounded once.
///   - The ranks' calls are compared before any data moves, also between hosts (CommOptions::check).
///   - Collectives are executed one after the other, in the order of their calls; any number may be issued.
///   - A part of a world that lies within one host is carried by shared memory alone, one of single ranks of different
///     hosts by `outer` alone; both still drive everything of the world, and learn of failures in all of it.
///   - allocate() is that of shared memory.
///   - Errors name ranks of the communicator and of the whole world. A rank that is lost, gives up or is late becomes
///     known to the ranks of all hosts within half a second of waiting, by the store.
/// Throws UsageError for another `outer`, naming the valid ones, CommError if a rank does not come in time.
std::shared_ptr<Communicator> make_hierarchical_world(const RankInfo& info, const std::shared_ptr<Store>& store,
                                                      const CommOptions& options = {},
                                                      const std::string& outer = "gloo", const std::string& host = "");

}  // namespace caravan
