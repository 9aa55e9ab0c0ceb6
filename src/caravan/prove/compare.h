#pragma once

#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "caravan/prove/prove.h"
#include "caravan/prove/trace.h"

namespace caravan {

/// The largest relative error that rounding explains. `one` has what trace_on_one adds.
double default_tolerance(const Trace& one, const ProveCase& what);

/// The largest tolerance that shows every fault, and the fault that limits it.
struct ValidTolerance {
  double tolerance = std::numeric_limits<double>::infinity();
  double error = 0;   ///< that the fault makes
  double margin = 1;  ///< how many times the tolerance an error has to be
  const char* fault = "";
  std::string parameter{};
  /// What is wrong with a larger tolerance, naming the gradient.
  std::string to_string() const;
};
/// `one` has summands.
ValidTolerance largest_valid(const Trace& one, const ProveCase& what);

/// Whether all differences of the step that differs are less than half of what any fault makes. Rounding may differ so
/// much where a gradient nearly cancels; a fault differs with all values.
bool may_be_rounding(const Proof& proof, const ProveCase& what);

/// prove(), but a difference that cannot be told from rounding (Proof::doubt) is no error.
Proof prove_values(const ProveCase& what, const std::shared_ptr<Communicator>& world);
/// Throws UsageError if there is such a difference.
void refuse_doubt(const Proof& proof);

/// Compares every rank's trace with that of one process; see prove.
Proof compare_traces(const std::vector<Trace>& ranks, const Trace& one, double tolerance, const ProveCase& what);

}  // namespace caravan
