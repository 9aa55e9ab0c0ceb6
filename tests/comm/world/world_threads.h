#pragma once

#include "tests/ranks/rank_case.h"

namespace caravan::testing {

/// Runs `body` on `num_ranks` threads, each with a world with separate connections that `make` creates in one local
/// store, and throws the exception of the rank that failed first by cause.
void run_thread_worlds(int num_ranks, const RankBody& body, const CommOptions& options, const MakeWorld& make);

}  // namespace caravan::testing
