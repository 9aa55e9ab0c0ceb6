#pragma once

#include "caravan/comm/c10d/work.h"

/// The methods of the back-end, with the names that the profiler shows: gloo's, with another prefix.
namespace caravan::c10d_methods {

using c10d::OpType;

inline constexpr C10dMethod kAllReduce{OpType::ALLREDUCE, "allreduce", "caravan:all_reduce"};
inline constexpr C10dMethod kAllReduceCoalesced{OpType::ALLREDUCE_COALESCED, "allreduce_coalesced",
                                                "caravan:all_reduce"};
inline constexpr C10dMethod kAllReduceSparse{OpType::_ALLREDUCE_SPARSE, "allreduce_sparse",
                                             "caravan:sparse_all_reduce"};
inline constexpr C10dMethod kGatherShapes{OpType::ALLGATHER, "allreduce_sparse", nullptr};  ///< a part of it
inline constexpr C10dMethod kBroadcast{OpType::BROADCAST, "broadcast", "caravan:broadcast"};
inline constexpr C10dMethod kReduce{OpType::REDUCE, "reduce", "caravan:reduce"};
inline constexpr C10dMethod kAllGather{OpType::ALLGATHER, "allgather", "caravan:all_gather"};
inline constexpr C10dMethod kAllGatherCoalesced{OpType::ALLGATHER_COALESCED, "allgather_coalesced",
                                                "caravan:all_gather"};
inline constexpr C10dMethod kAllGatherBase{OpType::_ALLGATHER_BASE, "_allgather_base", "caravan:all_gather"};
inline constexpr C10dMethod kAllGatherBaseCoalesced{OpType::COALESCED, "allgather_into_tensor_coalesced",
                                                    "caravan:all_gather"};
inline constexpr C10dMethod kGather{OpType::GATHER, "gather", "caravan:gather"};
inline constexpr C10dMethod kScatter{OpType::SCATTER, "scatter", "caravan:scatter"};
inline constexpr C10dMethod kReduceScatter{OpType::REDUCE_SCATTER, "reduce_scatter", "caravan:reduce_scatter"};
inline constexpr C10dMethod kReduceScatterBase{OpType::_REDUCE_SCATTER_BASE, "_reduce_scatter_base",
                                               "caravan:reduce_scatter"};
inline constexpr C10dMethod kReduceScatterBaseCoalesced{OpType::COALESCED, "reduce_scatter_tensor_coalesced",
                                                        "caravan:reduce_scatter"};
inline constexpr C10dMethod kAllToAllBase{OpType::ALLTOALL_BASE, "alltoall_base", "caravan:all_to_all"};
inline constexpr C10dMethod kAllToAll{OpType::ALLTOALL, "alltoall", "caravan:all_to_all"};
inline constexpr C10dMethod kSend{OpType::SEND, "send", "caravan:send"};
inline constexpr C10dMethod kRecv{OpType::RECV, "recv", "caravan:recv"};
inline constexpr C10dMethod kRecvAnySource{OpType::RECVANYSOURCE, "recvAnysource", "caravan:recvAnySource"};
inline constexpr C10dMethod kMonitoredBarrier{OpType::BARRIER, "monitoredBarrier", nullptr};  ///< of messages
inline constexpr C10dMethod kBarrier{OpType::BARRIER, "barrier", "caravan:barrier"};

}  // namespace caravan::c10d_methods
