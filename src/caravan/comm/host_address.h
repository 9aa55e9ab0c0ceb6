#pragma once

#include <string>

#include "caravan/comm/rendezvous.h"

namespace caravan {

/// The numeric address of this host at which the other ranks of the job reach it: the one from which it would talk to
/// the master; for the master itself, which would talk to itself over loopback, the first one that is not loopback if
/// there are other hosts. Throws UsageError if MASTER_ADDR means nothing here.
std::string own_address(const RankInfo& info);

}  // namespace caravan
