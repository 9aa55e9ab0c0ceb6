#pragma once

#include <ctime>
#include <functional>
#include <vector>

#include "caravan/plan/predict.h"
#include "caravan/plan/search.h"
#include "caravan/plan/sketch.h"
#include "caravan/plan/sketch_queue.h"
#include "caravan/recipe/recipe.h"

namespace caravan {

struct RefineOptions {
  double best_seconds = 0;                          ///< what takes longer is of no use; 0: anything is
  std::function<bool(const Recipe&)> may_choose{};  ///< whether a layout may be used
  std::clock_t end = 0;                             ///< when no further layout is rehearsed
};

/// Promising layouts with a choice for each layer (plan/unit_choice.h): which stage has it, and whether it keeps its
/// activations or recomputes them. A layout that is fast without recomputation but does not fit recomputes as few
/// layers as it must; stages get layers by predicted seconds, head included, and by the speed and memory of their
/// devices. Rehearsed whole; at most two that fit. One that needs more than it was given is chosen again with less.
std::vector<PlannedLayout> refined_layouts(Sketcher& sketcher, const SketchQueue& queue, const Predictor& predictor,
                                           const RefineOptions& options);

}  // namespace caravan
