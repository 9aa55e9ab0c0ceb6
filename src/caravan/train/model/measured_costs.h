#pragma once

#include <vector>

#include "caravan/mesh/mesh.h"
#include "caravan/recipe/recipe.h"

namespace caravan {

/// How long this rank's processor takes for forward and backward of a micro-batch of the recipe, in milliseconds, of
/// the embedding, each layer and the head of `model`: for stages of a pipeline that cost the same. All layers are
/// alike, so a model of one layer is run, whole and on one rank; the median of some steps, the mean over ranks. Every
/// rank calls it, and gets the same numbers.
std::vector<double> measured_costs(const Recipe& recipe, const ModelConfig& model, const Mesh& mesh);

}  // namespace caravan
