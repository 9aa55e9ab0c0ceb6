#pragma once

#include <functional>
#include <vector>

#include "caravan/plan/sketch.h"
#include "caravan/plan/sketch_queue.h"
#include "caravan/recipe/recipe.h"

namespace caravan {

/// Promising layouts with a choice for each layer (plan/unit_choice.h): which stage has it, and whether it keeps its
/// activations or recomputes them. A layout that is fast without recomputation but does not fit recomputes as few
/// layers as it must; stages get layers by predicted seconds, head included, and by the speed of their devices. Those
/// that promise less than `best_seconds` (0: any) and that `may_choose` takes, at most two. To be rehearsed whole:
/// layers differ.
std::vector<Recipe> refined_layouts(Sketcher& sketcher, const SketchQueue& queue, int num_ranks, double best_seconds,
                                    const std::function<bool(const Recipe&)>& may_choose);

}  // namespace caravan
