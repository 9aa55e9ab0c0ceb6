#pragma once

#include <span>

#include "caravan/comm/work.h"

namespace caravan {

/// The operations that the verbs of a Communicator mean, with complete counts; not checked (see check_operation).
/// `size` is that of the communicator; of reduce, `out` is empty but on the root.
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

}  // namespace caravan
