#pragma once

#include <string>
#include <vector>

#include "caravan/comm/shm.h"
#include "tests/ranks/rank_case.h"

namespace caravan::testing {

/// How the process of one rank ended.
struct RankEnd {
  int exit_code = -1;  ///< -1 if a signal ended it
  int signal = 0;
  std::string output;  ///< stdout and stderr together
};

/// A MakeWorld.
std::shared_ptr<Communicator> shm_world(const RankInfo& info, const std::shared_ptr<Store>& store,
                                        const CommOptions& options);

/// Runs `body` on `ranks` processes over the world that `make` makes and returns when all have ended. Each process is
/// this test program again, by exec, told to run the current test only: it comes to this very call, becomes one rank in
/// it and ends there with 0, or with 1 if an assertion failed or `body` threw. So what a test does before its call
/// happens in every process, and `body` sees copies of what stands around it. Processes that hang are killed, with a
/// failure, when the time-out of `options` has long passed.
std::vector<RankEnd> run_processes(int ranks, const RankBody& body, const CommOptions& options,
                                   const MakeWorld& make = shm_world);

/// The same, where every process is expected to end with 0.
void run_process_ranks(int ranks, const RankBody& body, const CommOptions& options);
void run_process_ranks(int ranks, const RankBody& body, const CommOptions& options, const MakeWorld& make);

}  // namespace caravan::testing
