#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "caravan/comm/c10d/progress.h"
#include "caravan/comm/communicator.h"

namespace caravan {

struct C10dOptions {
  std::string name = "caravan";                ///< result of getBackendName()
  std::chrono::milliseconds timeout{300'000};  ///< that of the communicator, reported to c10d
  /// Shared by the process groups of one rank, so that waiting in one progresses all of them; null: a separate one.
  std::shared_ptr<C10dProgress> progress{};
  /// Creates the communicator of a group split from this one, or merged; its ranks meet in `store`. Null: split() and
  /// merge() are refused.
  std::function<std::shared_ptr<Communicator>(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                              std::chrono::milliseconds timeout)>
      connect{};
};

/// A communicator as a back-end of c10d, for ProcessGroup::setBackend(kCPU, CUSTOM, ..), c10d::Reducer, and Python's
/// DistributedDataParallel and FSDP2. Nothing else may use the communicator, nor another one of its world at the same
/// time on another thread. See queue.h.
///
///   does      what c10d's gloo does with host tensors: all collectives, coalesced and with lists of uneven sizes;
///             allreduce of sparse tensors (SUM); send, recv and recvAnysource with tags (see messages.h); barrier,
///             monitoredBarrier. Every op, see reduction.h
///   takes     host tensors; to move: of any dtype. Those that are not contiguous are copied, as are lists that do not
///             lie one after the other in memory; send, recv and alltoall_base refuse them
///   refuses   anything else by UsageError, before anything is sent. If the size or dtype of a recv is not that of the
///             send, both ranks get an error (gloo accepts a shorter message)
///   work      wait(timeout) and the `timeout` of options count if shorter than the communicator's; then CommError, and
///             the operation continues. Every other CommError ends the communicator, as in communicator.h.
///   profiler  every call is an event, "caravan:all_reduce", with the shapes of its inputs
///   memory    allocateTensor gives Communicator::allocate's. c10d's Reducer takes it for its buckets if the
///             environment has DDP_DISABLE_COMM_MEM=0 (torch 2.13), FSDP2 for its buffers after
///             set_allocate_memory_from_process_group_for_comm(True). It is freed by any thread
///   end       shutdown(), or the last reference: outstanding operations have a second, then the peers are told.
///             abort() may be called while another thread waits only if the communicator is over shared memory
c10::intrusive_ptr<c10d::Backend> make_c10d_backend(std::shared_ptr<Communicator> communicator,
                                                    C10dOptions options = {});

}  // namespace caravan
