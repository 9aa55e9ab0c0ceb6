#pragma once

#include "caravan/mesh/mesh.h"
#include "caravan/models/model.h"
#include "caravan/recipe/init_from.h"

namespace caravan {

/// Fills the parameters of `model`, in the layouts they rest in, with the weights of `source`; of learned positions as
/// many as the model has. Adapters that it does not have stay as they are. Every rank of `mesh` calls it, with the same
/// source. A checkpoint is read piece by piece; of a Hugging Face folder each rank reads all. Throws DataError on every
/// rank for weights that are missing, damaged, of another shape, or not the same on all ranks.
void load_weights(Model& model, const Mesh& mesh, const InitSource& source);

}  // namespace caravan
