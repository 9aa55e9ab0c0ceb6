#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "caravan/data/tokenizer/tokenizer.h"
#include "caravan/formats/huggingface/text_settings.h"
#include "caravan/mesh/mesh.h"
#include "caravan/models/model.h"

namespace caravan {

struct LoadedModel {
  std::unique_ptr<Model> model;
  Tokenizer tokenizer;
  TextSettings text;
  std::string origin;  ///< e.g. "runs/default-1/step_000500", for messages
};

/// Loads a model for inference or export from a run folder (its newest checkpoint), a checkpoint or a Hugging Face
/// folder. Every rank of `mesh` gets the whole model. Throws DataError for what is missing or damaged, and for weights
/// that are not finite.
LoadedModel load_model(const std::filesystem::path& source, const Mesh& mesh);

}  // namespace caravan
