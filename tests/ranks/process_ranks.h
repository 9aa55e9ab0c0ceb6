#pragma once

#include <string>
#include <vector>

#include "caravan/comm/backends/shared/shm.h"
#include "tests/ranks/rank_case.h"

namespace caravan::testing {

/// How the process of a rank ended.
struct RankEnd {
  int exit_code = -1;  ///< -1 if a signal ended it
  int signal = 0;
  std::string output;  ///< stdout and stderr together
};

/// A MakeWorld.
std::shared_ptr<Communicator> shm_world(const RankInfo& info, const std::shared_ptr<Store>& store,
                                        const CommOptions& options);

/// Runs `body` on `ranks` processes with the world from `make` and returns when all have ended. Each process executes
/// this test program with a filter for the current test: it reaches this call, becomes one rank in it and exits there
/// with 0, or with 1 if an assertion failed or `body` threw. Code before this call therefore runs in every process, and
/// `body` sees copies of the variables it captures. Processes that hang are killed 30 s after the time-out of
/// `options`, and the test fails.
std::vector<RankEnd> run_processes(int ranks, const RankBody& body, const CommOptions& options,
                                   const MakeWorld& make = shm_world);

/// The same, but fails if a process does not exit with 0.
void run_process_ranks(int ranks, const RankBody& body, const CommOptions& options);
void run_process_ranks(int ranks, const RankBody& body, const CommOptions& options, const MakeWorld& make);

}  // namespace caravan::testing
