#pragma once

#include <memory>
#include <string>
#include <vector>

#include "caravan/prove/prove.h"
#include "caravan/prove/trace.h"

namespace caravan {

/// The largest relative error that rounding explains. `one` has what trace_on_one adds.
double default_tolerance(const Trace& one, const ProveCase& what);
/// The largest tolerance that shows every fault.
double largest_tolerance(const Trace& one, const ProveCase& what);
/// Whether all differences of the step that differs are less than half of what any fault makes. Rounding may differ so
/// much where a gradient nearly cancels; a fault differs with all values.
bool may_be_rounding(const Proof& proof, const ProveCase& what);

/// Not empty, naming the first gradient, if a factor of 1/2 or a missing summand would not exceed the tolerance
/// tenfold. `one` has summands.
std::string doubt_about(const Trace& one, double tolerance, const ProveCase& what);

/// prove(), but a difference that cannot be told from rounding (Proof::doubt) is no error.
Proof prove_values(const ProveCase& what, const std::shared_ptr<Communicator>& world);
/// Throws UsageError for such a difference.
void refuse_doubt(const Proof& proof);

/// Compares every rank's trace with that of one process; see prove.
Proof compare_traces(const std::vector<Trace>& ranks, const Trace& one, double tolerance, const ProveCase& what);

}  // namespace caravan
