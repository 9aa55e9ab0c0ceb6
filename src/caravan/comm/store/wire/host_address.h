#pragma once

#include <string>

#include "caravan/comm/store/rendezvous.h"

namespace caravan {

/// The numeric address at which the other ranks of the job reach this host: the source address of a connection to the
/// master. On the master itself, if there are other hosts: its first address that is not loopback. Throws UsageError if
/// MASTER_ADDR cannot be resolved or reached.
std::string own_address(const RankInfo& info);

}  // namespace caravan
