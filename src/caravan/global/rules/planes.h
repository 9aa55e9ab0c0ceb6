#pragma once

#include <optional>

#include "caravan/global/operation.h"

namespace caravan {

/// For kernels of ATen that refuse tensors without elements: where an uneven cut leaves a rank with 0 of a label, the
/// op runs on one zero of it, and what it returns is cut to 0. Right for ops that are independent along each such
/// label, or sum over it so that zeros add nothing. Call it last; not for calls with lists of tensors.
void never_empty(const OpCall& call, TypedCall& operation);

/// The type of ops on images: independent along the dims before the last `num_spatial`, of which they need all. Every
/// operand has the leading dims of the first.
std::optional<TypedCall> on_planes(const OpCall& call, int num_spatial, bool is_linear);

}  // namespace caravan
