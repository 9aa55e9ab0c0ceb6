#pragma once

#include "caravan/mesh/mesh.h"
#include "caravan/models/model.h"
#include "caravan/recipe/init_from.h"

namespace caravan {

/// Fills the sharded parameters of `model` with the weights of `source`; takes as many learned positions as the model
/// has. Adapters missing in `source` are left unchanged. Every rank of `mesh` calls it, with the same source. A
/// checkpoint is read piece by piece; a Hugging Face folder is read whole by each rank. Throws DataError on every rank
/// for weights that are missing, damaged, of another shape, or not the same on all ranks.
void load_weights(Model& model, const Mesh& mesh, const InitSource& source);

}  // namespace caravan
