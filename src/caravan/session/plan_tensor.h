#pragma once

#include <functional>
#include <map>
#include <vector>

#include "caravan/session/candidates.h"
#include "caravan/session/plan_search.h"

namespace caravan {

/// How a net is best split over an axis tp, for LayoutLimits::tensors.
struct FoundTensors {
  std::map<int, TensorChoice> by_size{};  ///< empty if no split is faster than copies
  bool is_complete = true;                ///< false: time was up
};

/// Searches among candidates(), from whole parameters to the choice with which the rehearsed step takes the least time,
/// one after another until none is better; then to two at once that cut dims of one size, as the columns of a layer and
/// the rows of the next. This is done for the smallest axis on which the rows can be dealt; larger ones take the same
/// choices where they are legal.
///
/// `step` and `limits` without tensors; `is_over` as for search_step_layouts().
FoundTensors find_tensors(const PlannedStep& step, LayoutLimits limits, const CandidateOptions& options,
                          const KeptTensors& kept, const std::function<bool()>& is_over);

}  // namespace caravan
