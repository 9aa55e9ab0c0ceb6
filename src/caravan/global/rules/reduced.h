#pragma once

#include <string>
#include <vector>

#include "caravan/global/operation.h"

namespace caravan {

/// The dims that a reduction of operand 0 takes away: its argument `dim`, an int or a list; all of them if that is
/// missing, None or empty.
std::vector<int64_t> reduced_dims(const OpCall& call);
/// The type of a reduction of operand 0 over `dims`, with the argument `keepdim`: sums over what is reduced.
TypedCall reduction(const OpCall& call, const std::vector<int64_t>& dims);
/// Of a reduction: the labels that its outputs do not have.
std::string reduced_labels(const TypedCall& operation);
/// The same for a reduction whose kernel makes the whole result on every rank where a reduced label is cut.
TypedCall reduction_by_kernel(const OpCall& call, const std::vector<int64_t>& dims);
/// A reduction that needs all elements of the dims that it takes away.
TypedCall whole_reduction(const OpCall& call);

}  // namespace caravan
