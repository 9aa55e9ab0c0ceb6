#pragma once

#include <memory>

#include "caravan/comm/communicator.h"
#include "caravan/comm/options.h"
#include "caravan/comm/rendezvous.h"

namespace caravan {

/// The world of processes of any number of hosts, over TCP by gloo through c10d. Every rank of `info` calls it.
/// gloo carries bytes; every verb is built from its messages, sums in rank order, bf16 and fp16 accumulated in fp32. A
/// failure that only another rank can see is read from the store, within a second of waiting. The sockets are gloo's:
/// for trusted networks. Throws CommError naming the ranks that do not come within the time-out (at least 5 s).
std::shared_ptr<Communicator> make_gloo_world(const RankInfo& info, const std::shared_ptr<Store>& store,
                                              const CommOptions& options = {});

/// A client of the c10d TCPStore that torchrun's agent serves on info.master_addr:master_port.
std::shared_ptr<Store> connect_agent_store(const RankInfo& info, std::chrono::milliseconds timeout);

}  // namespace caravan
