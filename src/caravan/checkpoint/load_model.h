#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "caravan/data/tokenizer.h"
#include "caravan/mesh/mesh.h"
#include "caravan/nn/model.h"

namespace caravan {

struct LoadedModel {
  std::unique_ptr<Model> model;
  Tokenizer tokenizer;
  std::string origin;  ///< "runs/default-1/step_000500", for messages
};

/// A model to use, from a run folder (its newest checkpoint), a checkpoint or a Hugging Face folder; materialised whole
/// on every rank of `mesh`. Throws DataError for what is missing or damaged.
LoadedModel load_model(const std::filesystem::path& source, const Mesh& mesh);

}  // namespace caravan
