#pragma once

#include <memory>

#include "caravan/comm/store/rendezvous.h"

namespace caravan {

/// The store of a job whose rank 0 serves it (`server`; null on other ranks) because no launcher does. The destructor
/// on rank 0 waits up to a second for the other ranks, which may still have to read why the job ends. `client` is this
/// rank's.
std::shared_ptr<Store> make_served_store(std::unique_ptr<StoreServer> server, std::shared_ptr<Store> client,
                                         int world_size);

}  // namespace caravan
