#pragma once

#include "tests/ranks/rank_case.h"

namespace caravan::testing {

/// How many ranks mpirun has started; 1 without it.
int num_mpi_ranks();

/// Runs `body` as this rank of the world that mpirun has started: each rank is in a process of its own and runs the
/// same tests in the same order. What `body` throws is a failure of this rank's test.
void run_mpi_ranks(int num_ranks, const RankBody& body, const CommOptions& options);
/// The same over the world that `make` makes.
void run_mpi_ranks(int num_ranks, const RankBody& body, const CommOptions& options, const MakeWorld& make);

/// The same without the descriptor check.
void run_unchecked_mpi_ranks(int num_ranks, const RankBody& body, const CommOptions& options);

}  // namespace caravan::testing
