#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include "caravan/comm/algorithms/selection.h"
#include "caravan/comm/communicator.h"

namespace caravan::algorithms {

/// What one algorithm took for one verb and size: the slowest rank's median over `repeats` calls, equal on every rank.
struct Measurement {
  Verb verb = Verb::all_reduce;
  Choice choice;
  int64_t bytes = 0;  ///< of the whole vector, as in SelectionTable
  int repeats = 0;
  double median_us = 0;
};

struct TuneOptions {
  std::vector<Verb> verbs{std::begin(kVerbs), std::end(kVerbs)};
  std::vector<int64_t> bytes{4 << 10, 64 << 10, 1 << 20, 16 << 20};  ///< ascending, multiples of 4
  std::vector<int64_t> segment_bytes{64 << 10, 1 << 20};             ///< of chain
  int max_repeats = 50;                                              ///< per measurement, beside one to warm up
  std::chrono::milliseconds at_most{300};                            ///< per measurement; 3 repeats at least
  /// Called on every rank after each measurement, in the same order.
  std::function<void(const Measurement&)> report{};
};

struct TuneResult {
  /// The built-in table with rules for this back-end and up to this number of ranks: at each size measured the fastest,
  /// and between two sizes that of the nearer one (by ratio). `direct` stands unless another is 5 % faster.
  SelectionTable table;
  std::vector<Measurement> measurements;
};

/// Times fp32 sums and moves with every algorithm that serves each verb. Every rank of `comm` calls it, with equal
/// options and nothing outstanding; all get the same result. Where the back-end's own collectives are made of messages
/// (gloo, mpi) they are timed, with the algorithm in question; else sends and recvs of `comm`. Leaves the back-end's
/// table as it was. Throws UsageError for empty or descending sizes, or one rank.
TuneResult tune(Communicator& comm, const TuneOptions& options = {});

/// The measurements for people: a line per verb and size, a column per algorithm, the fastest marked.
std::string to_string(const std::vector<Measurement>& measurements);

}  // namespace caravan::algorithms
