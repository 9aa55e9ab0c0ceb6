#pragma once

#include <memory>

#include "caravan/comm/rendezvous.h"

namespace caravan {

/// The store of a job for which no launcher serves one: rank 0 does (`server`, null on the others). At its end it waits
/// a little for the others, which may still have to read there why the job ends. `client` is this rank's.
std::shared_ptr<Store> make_served_store(std::unique_ptr<StoreServer> server, std::shared_ptr<Store> client,
                                         int world_size);

}  // namespace caravan
