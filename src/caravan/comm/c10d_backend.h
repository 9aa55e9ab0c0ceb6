#pragma once

#include <chrono>
#include <memory>
#include <string>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "caravan/comm/c10d_progress.h"
#include "caravan/comm/communicator.h"

namespace caravan {

struct C10dOptions {
  std::string name = "caravan";                ///< what getBackendName() answers
  std::chrono::milliseconds timeout{300'000};  ///< that of the communicator, which c10d asks for
  /// Shared by the process groups of one rank, so that waiting in one drives all of them; null: one of its own.
  std::shared_ptr<C10dProgress> progress;
};

/// A communicator as a back-end of c10d, for ProcessGroup::setBackend(kCPU, CUSTOM, ..), c10d::Reducer, and Python's
/// DistributedDataParallel and FSDP2. Nothing else may use the communicator. One call at a time; see c10d_line.h.
///
///   does      allreduce(_coalesced), broadcast, reduce, allgather, _allgather_base, allgather_into_tensor_coalesced,
///             gather, scatter, reduce_scatter, _reduce_scatter_base, reduce_scatter_tensor_coalesced, alltoall(_base),
///             send, recv, barrier, monitoredBarrier; ops sum, max, min, avg (a sum, then one division by size(), as in
///             gloo) and premul_sum (of a scaled copy)
///   takes     contiguous host tensors; to move: of any dtype, to reduce: those of the communicator (types.h).
///             Lists may be of uneven sizes. Lists that do not lie one after the other in memory are copied.
///   refuses   other ops, tags but 0 (messages of a pair come in the order sent), recv from any rank, sparse tensors:
///             UsageError, before anything is sent
///   work      wait(timeout) and the `timeout` of options count if shorter than the communicator's; then CommError, and
///             the operation goes on. Every other CommError is the end of the communicator, as in communicator.h.
///   memory    allocateTensor gives Communicator::allocate's. c10d's Reducer takes it for its buckets if the
///   environment
///             has DDP_DISABLE_COMM_MEM=0 (torch 2.13), FSDP2 for its buffers after
///             set_allocate_memory_from_process_group_for_comm(True). It is freed by any thread
///   end       shutdown(), or the last reference: outstanding operations have a second, then the peers are told
c10::intrusive_ptr<c10d::Backend> make_c10d_backend(std::shared_ptr<Communicator> communicator,
                                                    C10dOptions options = {});

}  // namespace caravan
