#pragma once

#include <string>
#include <vector>

#include "caravan/nn/config.h"
#include "caravan/recipe/init_from.h"

namespace caravan {

class Engine;

/// Fills the sharded parameters of `engine`, of a Model of this configuration, with the weights of `source`; takes as
/// many learned positions as the model has. Adapters missing in `source` are left unchanged, and so is a head that the
/// source lacks or that predicts something else; returns the names of its parameters. Every rank calls it, with the
/// same source, and reads its own pieces. Throws DataError on every rank for weights that are missing, damaged, of
/// another shape, or not the same on all ranks.
std::vector<std::string> load_weights(Engine& engine, const ModelConfig& model, const InitSource& source);

}  // namespace caravan
