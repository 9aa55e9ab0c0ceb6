#pragma once

#include <memory>
#include <string>

#include "caravan/comm/communicator.h"
#include "caravan/comm/options.h"
#include "caravan/comm/store/rendezvous.h"

namespace caravan {

/// The world of the processes of several hosts: shared memory on each host, messages of `outer` ("gloo" or "mpi")
/// between hosts. Every rank of `info` calls it. Ranks are on the same host if they share a kernel, a network namespace
/// and a user, or, if `host` is not empty, if they pass the same `host`. Hosts may have any numbers of ranks, in any
/// order.
///
/// The steps, and the bytes that one host sends to others, with H hosts of L ranks each and x = bytes of `in`. "Cross"
/// is an operation of the ranks with the same local rank. If the hosts have different numbers of ranks, only the
/// leaders, which have local rank 0, exchange data between hosts:
///   all_reduce      local reduce_scatter, cross all_reduce, local all_gather. Below 64 KiB, or with leaders: local
///   reduce,
///                   all_reduce of the leaders, local broadcast. 2(H-1)/H x.
///   reduce_scatter  local reduce_scatter, cross reduce_scatter: (H-1)/H x. With leaders: local reduce, reduce_scatter
///   of
///                   the leaders, local scatter: the same.
///   all_gather      cross all_gather, local all_gather: (H-1) L x. With leaders: local all_gather, all_gather of the
///                   leaders, local broadcast: the same.
///   broadcast       local on the root's host, cross or among the leaders, local on the other hosts: x from the root's
///   host. reduce          local to the rank that crosses, then to the root's host: x from every other host.
///   all_to_all      locally and between ranks of different hosts at the same time: only what is for other hosts.
///   send, recv      by shared memory on one host, else by messages.
///   barrier         local, leaders, local.
/// These are the bytes of the `outer` collectives by ring; Traffic counts as in every other back-end.
///
///   - Sums are taken in the order of local ranks on each host, then in the order of hosts (by their first ranks). The
///     result has the same bits on every rank and in every run, and differs by rounding from that of one level. bf16
///     and fp16 are added in fp32 on both levels and rounded once.
///   - The ranks' calls are compared before any data is sent, also between hosts (CommOptions::check).
///   - Collectives are executed one after the other, in the order of their calls; any number may be outstanding.
///   - A communicator whose ranks are all on one host uses shared memory only; one of single ranks of different hosts
///     uses `outer` only. Both still progress everything of the world, and notice failures in all of it.
///   - allocate() is that of shared memory.
///   - Errors name ranks of the communicator and of the whole world. The ranks of all hosts notice within half a second
///     of waiting, through the store, that a rank is lost, aborts or is late.
/// Throws UsageError for any other `outer`, naming the valid ones, and CommError if a rank does not join in time.
std::shared_ptr<Communicator> make_hierarchical_world(const RankInfo& info, const std::shared_ptr<Store>& store,
                                                      const CommOptions& options = {},
                                                      const std::string& outer = "gloo", const std::string& host = "");

}  // namespace caravan
