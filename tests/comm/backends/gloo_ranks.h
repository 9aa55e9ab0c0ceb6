#pragma once

#include "tests/ranks/rank_case.h"

namespace caravan::testing {

/// Runs `body` on `num_ranks` threads, each with a gloo world with separate connections over loopback, and throws the
/// exception of the rank that failed first by cause.
void run_gloo_ranks(int num_ranks, const RankBody& body, const CommOptions& options);

/// The same without the descriptor check.
void run_unchecked_gloo_ranks(int num_ranks, const RankBody& body, const CommOptions& options);

}  // namespace caravan::testing
