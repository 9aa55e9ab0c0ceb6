#include "caravan/formats/huggingface/load_model.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/engine/training_state.h"
#include "caravan/formats/checkpoint/checkpoint.h"
#include "caravan/formats/huggingface/config_text.h"
#include "caravan/formats/huggingface/huggingface.h"
#include "caravan/module/finite.h"

namespace caravan {
namespace {

namespace fs = std::filesystem;

LoadedModel from_folder(const fs::path& folder, const Mesh& mesh) {
  HuggingFaceModel read = read_huggingface(folder);
  std::unique_ptr<Model> model = make_model(read.config);
  model->materialise(mesh, {}, {.initialise = false});
  const auto parameters = model->parameters();
  for (size_t i = 0; i < parameters.size(); ++i) parameters[i]->sharded().copy_(read.parameters[i].second);
  return {std::move(model), std::move(read.tokenizer), std::move(read.text), folder.string()};
}

LoadedModel from_checkpoint(const fs::path& folder, const Mesh& mesh) {
  CheckpointReader reader(folder);
  const fs::path run = fs::absolute(folder).lexically_normal().parent_path();
  const fs::path beside = folder.filename().empty() ? run.parent_path() : run;
  const Tokenizer tokenizer = Tokenizer::load(beside / "tokenizer.json");
  if (tokenizer.hash().hex() != reader.info().tokenizer_hash) {
    throw DataError({"load", (beside / "tokenizer.json").string(), "is not the tokenizer the model was trained with",
                     folder.string(), "restore the file that the run wrote"});
  }
  const ModelConfig config = parse_config_text(reader.info().model, folder.string());
  int64_t stored = 0;
  for (const auto& [name, tensor] : reader.manifest().tensors) {
    for (const ManifestPiece& piece : tensor.pieces) stored += piece.box.num_elements();
  }
  if (config.num_parameters() > stored) {  // before names are created for the huge model of a damaged config
    throw DataError({"load", folder.string(),
                     fmt::format("holds {} numbers, but its model has {} parameters", stored, config.num_parameters()),
                     "", "use an older checkpoint of the same run"});
  }
  std::unique_ptr<Model> model = make_model(config);
  std::vector<std::pair<std::string, std::vector<int64_t>>> wanted;
  for (const Parameter* parameter : model->parameters())
    wanted.emplace_back(parameter->name(), parameter->global_shape());
  for (const auto& [name, tensor] : reader.manifest().tensors) {
    if (is_training_state(name)) wanted.emplace_back(name, tensor.shape);
  }
  reader.verify(mesh.world());
  reader.check(wanted);
  model->materialise(mesh, {}, {.initialise = false});
  for (const Parameter* parameter : model->parameters()) {
    const std::vector<int64_t>& shape = parameter->global_shape();
    reader.read(parameter->name(), {std::vector<int64_t>(shape.size(), 0), shape}, parameter->sharded().detach());
  }
  TextSettings text{parse_special_tokens(reader.info().model, folder.string()), read_text_files(beside)};
  return {std::move(model), tokenizer, std::move(text), folder.string()};
}

LoadedModel with_finite_weights(LoadedModel loaded) {
  for (const Parameter* parameter : loaded.model->parameters()) {
    if (all_finite(parameter->sharded())) continue;
    throw DataError({"load", loaded.origin, parameter->name() + " has values that are not finite", "",
                     "use an earlier checkpoint of the run: its training has diverged"});
  }
  return loaded;
}

}  // namespace

LoadedModel load_model(const fs::path& source, const Mesh& mesh) {
  const at::NoGradGuard no_grad;
  std::error_code error;
  if (fs::exists(source / "config.json", error)) return from_folder(source, mesh);  // checks them itself
  for (int attempt = 0;; ++attempt) {
    const fs::path folder = find_checkpoint(source);
    try {
      return with_finite_weights(from_checkpoint(folder, mesh));
    } catch (const DataError&) {
      // A running job may have pruned the checkpoint meanwhile, but then it has a newer one.
      constexpr int kMostAttempts = 10;
      if (attempt == kMostAttempts || fs::exists(folder, error)) throw;
    }
  }
}

}  // namespace caravan
