#pragma once

#include <filesystem>

#include "caravan/formats/huggingface/huggingface.h"
#include "caravan/mesh/mesh.h"

namespace caravan {

/// Writes a run folder `run` with the weights of `model` as step 0: step_000000, tokenizer.json, and a recipe.toml to
/// train it further with --resume. Every rank of `mesh` calls it. Returns `run`.
std::filesystem::path import_run(const HuggingFaceModel& model, const std::filesystem::path& run, const Mesh& mesh);

}  // namespace caravan
