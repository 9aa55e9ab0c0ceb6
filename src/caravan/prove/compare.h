#pragma once

#include <vector>

#include "caravan/prove/prove.h"
#include "caravan/prove/trace.h"

namespace caravan {

/// The largest relative error that rounding explains. `one` has what trace_on_one adds.
double default_tolerance(const Trace& one, const ProveCase& what);
/// Whether the first difference is less than half of what any fault makes, and none is planted. Rounding may differ so
/// much where a gradient nearly cancels; a fault differs with all values.
bool may_be_rounding(const Proof& proof, const ProveCase& what);
/// The largest tolerance that shows every fault.
double largest_tolerance(const Trace& one, const ProveCase& what);

/// Throws UsageError, naming the first gradient, if a factor of 1/2 or a missing summand would not exceed the tolerance
/// tenfold. `one` has summands.
void check_tolerance(const Trace& one, double tolerance, const ProveCase& what);

/// Compares every rank's trace with that of one process; see prove.
Proof compare_traces(const std::vector<Trace>& ranks, const Trace& one, double tolerance, const ProveCase& what);

}  // namespace caravan
