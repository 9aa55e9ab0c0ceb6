#pragma once

#include <memory>

#include "caravan/comm/communicator.h"
#include "caravan/comm/options.h"
#include "caravan/comm/store/rendezvous.h"

namespace caravan {

/// The world of processes on any number of hosts, over TCP by c10d's gloo. Every rank of `info` calls it. gloo only
/// transports bytes: every verb is built from its point-to-point messages. Sums are in rank order; bf16 and fp16 are
/// accumulated in fp32. A failure that only another rank can detect is read from the store, within a second of waiting.
/// Connections are not authenticated: use trusted networks. Throws CommError naming the ranks that do not join within
/// the time-out (at least 5 s).
std::shared_ptr<Communicator> make_gloo_world(const RankInfo& info, const std::shared_ptr<Store>& store,
                                              const CommOptions& options = {});

/// A client of the c10d TCPStore that torchrun's agent serves on info.master_addr:master_port.
std::shared_ptr<Store> connect_agent_store(const RankInfo& info, std::chrono::milliseconds timeout);

}  // namespace caravan
