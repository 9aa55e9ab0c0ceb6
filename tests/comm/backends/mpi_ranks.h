#pragma once

#include "tests/ranks/rank_case.h"

namespace caravan::testing {

/// The number of ranks that mpirun has started; 1 without it.
int num_mpi_ranks();

/// Runs `body` as this rank of the world that mpirun has started: each rank is a separate process and runs the same
/// tests in the same order. An exception of `body` is a failure of this rank's test.
void run_mpi_ranks(int num_ranks, const RankBody& body, const CommOptions& options);
/// The same over the world created by `make`.
void run_mpi_ranks(int num_ranks, const RankBody& body, const CommOptions& options, const MakeWorld& make);

/// The same without the descriptor check.
void run_unchecked_mpi_ranks(int num_ranks, const RankBody& body, const CommOptions& options);

}  // namespace caravan::testing
