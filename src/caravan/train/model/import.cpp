#include "caravan/train/model/import.h"

#include <ATen/core/grad_mode.h>

#include "caravan/formats/checkpoint/checkpoint.h"
#include "caravan/formats/huggingface/config_text.h"
#include "caravan/models/model.h"
#include "caravan/registry/registry.h"
#include "caravan/train/folder/run_state.h"

namespace caravan {

namespace {

/// The first schedule that does not depend on the number of steps: it is at the peak in the last step too.
Setting steady_schedule() {
  for (const std::string& name : names_of("learning_rate")) {
    const Setting schedule("learning_rate", name);
    if (schedule.entry().rate(schedule, 9, 0, 10) == 1) return schedule;
  }
  return Setting("learning_rate");
}

}  // namespace

std::filesystem::path import_run(const HuggingFaceModel& model, const std::filesystem::path& run, const Mesh& mesh) {
  const at::NoGradGuard no_grad;
  Recipe recipe;
  recipe.model = model.config;
  recipe.data.task = {.kind = usual_task(model.config), .classes = classes_of_records(model.text.tokens)};
  recipe.checkpoint.dir = std::filesystem::absolute(run).lexically_normal().string();
  recipe.data.tokenizer = recipe.checkpoint.dir + "/tokenizer.json";
  // Trained weights need a small learning rate.
  recipe.optimizer.rate = {.schedule = steady_schedule(), .lr = 1e-5, .warmup_steps = 10};

  const std::unique_ptr<Model> filled = make_model(model.config);
  filled->materialise(mesh, {}, {.initialise = false});
  std::vector<CheckpointPiece> pieces;
  const auto parameters = filled->parameters();
  for (size_t i = 0; i < parameters.size(); ++i) {
    parameters[i]->sharded().copy_(model.parameters[i].second);
    pieces.push_back(checkpoint_piece(parameters[i]->name(), *parameters[i], parameters[i]->sharded().detach(), mesh));
  }
  const CheckpointInfo info{.step = 0,
                            .position = 0,
                            .optimizer_steps = 0,
                            .recipe = to_toml(recipe),
                            .model = config_text(model.config, model.text.tokens),
                            .tokenizer_hash = model.tokenizer.hash().hex()};
  if (mesh.rank() == 0) {
    write_run_files(run, recipe, model.tokenizer);
    write_text_files(run, model.text.files, model.tokenizer, model.config);
  }
  save_checkpoint(run, info, pieces, mesh.world(), 0);
  return run;
}

}  // namespace caravan
