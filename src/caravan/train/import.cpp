#include "caravan/train/import.h"

#include <ATen/core/grad_mode.h>

#include "caravan/checkpoint/checkpoint.h"
#include "caravan/nn/model.h"
#include "caravan/train/run_state.h"

namespace caravan {

std::filesystem::path import_run(const HuggingFaceModel& model, const std::filesystem::path& run, const Mesh& mesh) {
  const at::NoGradGuard no_grad;
  Recipe recipe;
  recipe.model = model.config;
  recipe.data.tokenizer = (run / "tokenizer.json").string();
  recipe.checkpoint.dir = run.string();
  // For weights that know something already: gently, and with every step at the rate that is written.
  recipe.optimizer.rate = {.kind = LearningRate::Kind::constant, .lr = 1e-5, .warmup_steps = 10};

  const std::unique_ptr<Model> filled = make_model(model.config);
  filled->materialise(mesh, {}, {.initialise = false});
  std::vector<CheckpointPiece> pieces;
  const auto parameters = filled->parameters();
  for (size_t i = 0; i < parameters.size(); ++i) {
    parameters[i]->rest().copy_(model.parameters[i].second);
    pieces.push_back(checkpoint_piece(parameters[i]->name(), *parameters[i], parameters[i]->rest().detach(), mesh));
  }
  const CheckpointInfo info{.step = 0,
                            .position = 0,
                            .optimizer_steps = 0,
                            .recipe = to_toml(recipe),
                            .model = huggingface_config(model.config, special_tokens(model.tokenizer)),
                            .tokenizer_hash = model.tokenizer.hash().hex()};
  if (mesh.rank() == 0) write_run_files(run, recipe, model.tokenizer);
  save_checkpoint(run, info, pieces, mesh.world(), 0);
  return run;
}

}  // namespace caravan
