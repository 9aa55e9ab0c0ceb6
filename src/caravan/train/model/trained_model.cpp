#include "caravan/train/model/trained_model.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <utility>

#include "caravan/base/error.h"
#include "caravan/optim/loss_scale_state.h"
#include "caravan/optim/make_optimizer.h"
#include "caravan/optim/spike_guard_state.h"
#include "caravan/recipe/recipe_key.h"
#include "caravan/techniques/technique_body.h"
#include "caravan/train/choice.h"
#include "caravan/train/model/parameter_groups.h"

namespace caravan {

namespace {

/// Adds to make_strategy's errors about a key of the recipe the place where it was given.
Strategy strategy_of(const Recipe& recipe, Model& model, Mesh& mesh, const UnitCosts& unit_costs) {
  try {
    return make_strategy(strategy_choice(recipe, model.config(), mesh.size(), unit_costs), model, mesh);
  } catch (const UsageError& error) {
    const ErrorText& text = error.text();
    const auto names_it = [&](const RecipeKey& key) { return key.name == text.subject; };
    if (std::ranges::none_of(recipe_keys(), names_it)) throw;
    recipe.refuse(text.subject, text.fact, text.action);
  }
}

}  // namespace

TrainedModel::TrainedModel(const Recipe& recipe, const ModelConfig& config, Mesh& mesh, const UnitCosts& unit_costs,
                           at::Device device)
    : model(make_model(config)) {
  Strategy strategy = strategy_of(recipe, *model, mesh, unit_costs);
  set_update_rules(*model, recipe);
  engine =
      std::make_unique<Engine>(*model, mesh, std::move(strategy),
                               Engine::Options{.seed = static_cast<uint64_t>(recipe.train.seed), .device = device});
  optimizer = make_optimizer(recipe.optimizer.kind, engine->state());
  if (recipe.precision.scales_loss()) loss_scale.emplace(recipe.precision.loss_scale);
  tensors.add(state_of_model(*engine));
  tensors.add(*optimizer);
  if (loss_scale) tensors.add(state_of(*loss_scale));
  tensors.add(state_of_hook(*engine));
  if (recipe.optimizer.skip_spikes > 0) tensors.add(state_of(spike_guard.emplace(recipe.optimizer.skip_spikes)));
}

MemoryBytes TrainedModel::bytes() const {
  std::map<StatePiece::Kind, int64_t> of = tensors.bytes();
  MemoryBytes bytes{};
  bytes[MemoryKind::parameters] = engine->state().parameter_bytes;
  bytes[MemoryKind::gradients] = engine->state().gradient_bytes;
  bytes[MemoryKind::optimizer] =
      of[StatePiece::Kind::moment] + of[StatePiece::Kind::residual] + of[StatePiece::Kind::shared];
  return bytes;
}

StepperInputs stepper_inputs(TrainedModel& trained, const Recipe& recipe, int64_t num_micro_batches) {
  StepperInputs inputs{.engine = *trained.engine,
                       .optimizer = *trained.optimizer,
                       .learning_rate = recipe.optimizer.rate,
                       .options = {.seed = static_cast<uint64_t>(recipe.train.seed),
                                   .num_micro_batches = num_micro_batches,
                                   .clip_norm = recipe.optimizer.clip_norm,
                                   .loss_scale = trained.loss_scale ? &*trained.loss_scale : nullptr,
                                   .spike_guard = trained.spike_guard ? &*trained.spike_guard : nullptr},
                       .global_rows = recipe.train.global_batch};
  inputs.learning_rate.total_steps = recipe.train.steps;
  return inputs;
}

std::unique_ptr<Stepper> make_stepper(StepperInputs inputs, const Recipe& recipe) {
  const auto timeout = std::chrono::milliseconds(static_cast<int64_t>(recipe.comm.timeout_s * 1e3));
  std::unique_ptr<Stepper> stepper;
  for (const Setting& technique : techniques_of(recipe)) {
    auto own = body_of(technique).make_stepper(inputs, technique, timeout);
    if (own && stepper) {
      throw InternalError({"step", technique.full_name(), "is a second technique that steps in its own way", "",
                           "let it lack a trait that the first one needs"});
    }
    if (own) stepper = std::move(own);
  }
  return stepper ? std::move(stepper) : make_sync_stepper(inputs);
}

}  // namespace caravan
