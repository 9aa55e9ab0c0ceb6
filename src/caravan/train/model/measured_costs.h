#pragma once

#include "caravan/mesh/mesh.h"
#include "caravan/recipe/recipe.h"
#include "caravan/schedule/stages.h"

namespace caravan {

/// Measures the forward and backward time of a micro-batch of the recipe, in milliseconds, for the embedding, each
/// layer and the head of `model`, to balance pipeline stages. All layers are alike, so it runs a whole model of one
/// layer on each rank, and takes the median over some steps and the mean over ranks. Ranks of the pipeline of which one
/// takes a fifth longer than another for the layer get speeds; else all are taken to be alike. Every rank calls it, and
/// gets the same numbers.
UnitCosts measured_costs(const Recipe& recipe, const ModelConfig& model, const Mesh& mesh);

}  // namespace caravan
