#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include "caravan/comm/choice/selection.h"
#include "caravan/comm/communicator.h"

namespace caravan::algorithms {

/// The time of one algorithm for one verb and size: the slowest rank's median over `repeats` calls, equal on every
/// rank.
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
  std::vector<int64_t> segment_bytes{64 << 10, 1 << 20};             ///< for chain
  int max_repeats = 50;                                              ///< per measurement, after one warm-up call
  std::chrono::milliseconds at_most{300};                            ///< per measurement, but at least 3 repeats
  /// Called on every rank after each measurement, in the same order.
  std::function<void(const Measurement&)> report{};
};

struct TuneResult {
  /// The built-in table with rules for this back-end and up to this number of ranks: the fastest algorithm at each
  /// size; between two sizes that of the nearer one (by ratio). `direct` is kept unless another one is 5 % faster.
  SelectionTable table;
  std::vector<Measurement> measurements;
};

/// Times every algorithm of each verb, with fp32. Every rank of `comm` calls it, with equal options and nothing
/// outstanding; all get the same result. Where the back-end's own collectives are built on messages (gloo, mpi), these
/// are timed, with the algorithm selected; elsewhere the collective runs over sends and recvs of `comm`. Restores the
/// back-end's table. Throws UsageError for empty or descending sizes, or one rank.
TuneResult tune(Communicator& comm, const TuneOptions& options = {});

/// A readable table of the measurements: a line per verb and size, a column per algorithm, the fastest marked.
std::string to_string(const std::vector<Measurement>& measurements);

}  // namespace caravan::algorithms
