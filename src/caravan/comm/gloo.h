#pragma once

#include <memory>

#include "caravan/comm/communicator.h"
#include "caravan/comm/options.h"
#include "caravan/comm/rendezvous.h"

namespace caravan {

/// The world of processes of any number of hosts, over TCP by gloo through c10d. Every rank of `info` calls it.
/// bf16 and fp16 are reduced in fp32; what gloo lacks (uneven sizes, some dtypes) is built from bytes, sums in rank
/// order. The sockets are gloo's: for trusted networks.
std::shared_ptr<Communicator> make_gloo_world(const RankInfo& info, const std::shared_ptr<Store>& store,
                                              const CommOptions& options = {});

/// A client of the c10d TCPStore that torchrun's agent serves on info.master_addr:master_port.
std::shared_ptr<Store> connect_agent_store(const RankInfo& info, std::chrono::milliseconds timeout);

}  // namespace caravan
