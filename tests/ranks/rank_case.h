#pragma once

#include <functional>
#include <gmock/gmock.h>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "caravan/comm/communicator.h"
#include "caravan/comm/options.h"
#include "caravan/comm/store/rendezvous.h"

namespace caravan::testing {

using RankBody = std::function<void(const std::shared_ptr<Communicator>&)>;

/// Makes the world of one rank: make_gloo_world, for example.
using MakeWorld =
    std::function<std::shared_ptr<Communicator>(const RankInfo&, const std::shared_ptr<Store>&, const CommOptions&)>;

/// A back-end and a number of ranks: the parameter of every test that must hold for all back-ends. A test body is
/// written once, as what one rank does with its world; `run` runs it on all ranks and returns when they have ended.
struct RankCase {
  std::string backend;
  int ranks = 1;
  void (*run_ranks)(int ranks, const RankBody& body, const CommOptions& options) = nullptr;
  std::vector<int> hosts{};  ///< ranks of each host if sums are taken host by host; empty: in rank order

  /// The short default makes a test that hangs fail with the name of the operation.
  void run(const RankBody& body, std::chrono::milliseconds timeout = std::chrono::seconds(30)) const {
    run_ranks(ranks, body, CommOptions{.timeout = timeout});
  }
};

inline std::string case_name(const ::testing::TestParamInfo<RankCase>& info) {
  return info.param.backend + std::to_string(info.param.ranks);
}

inline void PrintTo(const RankCase& rank_case, std::ostream* out) { *out << rank_case.backend << rank_case.ranks; }

/// The cases of `backend` with these numbers of ranks.
inline std::vector<RankCase> rank_cases(const std::string& backend, const std::vector<int>& ranks,
                                        void (*run)(int, const RankBody&, const CommOptions&)) {
  std::vector<RankCase> cases;
  for (const int n : ranks) cases.push_back({backend, n, run});
  return cases;
}

/// The message of the Exception that `call` throws; "" and a failed test if it throws none.
template <class Exception, class Call>
std::string error_of(const Call& call) {
  try {
    call();
  } catch (const Exception& exception) {
    return exception.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

}  // namespace caravan::testing
