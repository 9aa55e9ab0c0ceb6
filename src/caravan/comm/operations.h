#pragma once

#include <cstdint>
#include <span>

#include "caravan/comm/work.h"

namespace caravan {

/// The operations behind the verbs of a Communicator of `size` ranks, with complete counts: for Communicator::run and
/// issue, which check them. The `out` of reduce is empty on all ranks but the root.
Operation all_reduce_operation(const ConstBuffer& in, const Buffer& out, ReduceOp op, const Call& call,
                               const Stream& stream = {});
Operation all_gather_operation(const ConstBuffer& in, const Buffer& out, std::span<const int64_t> counts, int size,
                               const Call& call, const Stream& stream = {});
Operation reduce_scatter_operation(const ConstBuffer& in, const Buffer& out, ReduceOp op,
                                   std::span<const int64_t> counts, int size, const Call& call,
                                   const Stream& stream = {});
Operation all_to_all_operation(const ConstBuffer& in, const Buffer& out, std::span<const int64_t> send_counts,
                               std::span<const int64_t> recv_counts, int size, const Call& call,
                               const Stream& stream = {});
Operation broadcast_operation(const Buffer& buffer, int root, const Call& call, const Stream& stream = {});
Operation reduce_operation(const ConstBuffer& in, const Buffer& out, ReduceOp op, int root, const Call& call,
                           const Stream& stream = {});
Operation message_operation(Verb verb, const ConstBuffer& in, const Buffer& out, int peer, const Call& call,
                            const Stream& stream = {});
Operation barrier_operation(const Call& call);

/// Where the part of `rank` begins in a buffer of parts of these sizes.
int64_t part_begin(std::span<const int64_t> counts, int rank);

/// The arguments of `operation` as a new operation, for a communicator in which the peer of send and recv is `peer`.
Operation same_call(const Operation& operation, int peer);

}  // namespace caravan
