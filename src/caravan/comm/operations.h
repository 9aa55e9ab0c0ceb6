#pragma once

#include <span>

#include "caravan/comm/work.h"

namespace caravan {

/// The operations that the verbs of a Communicator mean, with complete counts; not checked (see check_operation).
Operation all_reduce_operation(ConstBuffer in, Buffer out, ReduceOp op, const Call& call, Stream stream = {});
Operation all_gather_operation(ConstBuffer in, Buffer out, std::span<const int64_t> counts, int size, const Call& call,
                               Stream stream = {});
Operation reduce_scatter_operation(ConstBuffer in, Buffer out, ReduceOp op, std::span<const int64_t> counts, int size,
                                   const Call& call, Stream stream = {});
Operation all_to_all_operation(ConstBuffer in, Buffer out, std::span<const int64_t> send_counts,
                               std::span<const int64_t> recv_counts, int size, const Call& call, Stream stream = {});
Operation broadcast_operation(Buffer buffer, int root, const Call& call, Stream stream = {});
Operation reduce_operation(ConstBuffer in, Buffer out, ReduceOp op, int root, int rank, const Call& call,
                           Stream stream = {});
Operation send_operation(ConstBuffer in, int peer, const Call& call, Stream stream = {});
Operation recv_operation(Buffer out, int peer, const Call& call, Stream stream = {});
Operation barrier_operation(const Call& call);

}  // namespace caravan
