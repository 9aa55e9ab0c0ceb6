#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "caravan/cost/memory_bytes.h"
#include "caravan/engine/engine.h"
#include "caravan/engine/training_state.h"
#include "caravan/mesh/mesh.h"
#include "caravan/models/model.h"
#include "caravan/optim/loss_scale.h"
#include "caravan/optim/optimizer.h"
#include "caravan/optim/spike_guard.h"
#include "caravan/recipe/recipe.h"
#include "caravan/schedule/stages.h"
#include "caravan/step/stepper.h"

namespace caravan {

/// What the steps of a recipe change on this rank: created for a run, or on the meta device for its rehearsal.
struct TrainedModel {
  /// `config` is the recipe's model, with its vocabulary; `unit_costs` as in strategy_choice. `mesh` may get further
  /// axes. Every rank calls it.
  TrainedModel(const Recipe& recipe, const ModelConfig& config, Mesh& mesh, const UnitCosts& unit_costs = {},
               at::Device device = at::kCPU);

  std::unique_ptr<Model> model;
  std::unique_ptr<Engine> engine;
  std::unique_ptr<Optimizer> optimizer;
  std::optional<LossScale> loss_scale;    ///< for a run that computes in fp16
  std::optional<SpikeGuard> spike_guard;  ///< for a run that skips spikes
  TrainingState tensors;                  ///< all state of these

  /// Bytes that this rank has allocated between steps, by kind.
  MemoryBytes bytes() const;
};

/// The inputs of a stepper of the recipe, from step 0 on. A rank's step has `num_micro_batches`.
StepperInputs stepper_inputs(TrainedModel& trained, const Recipe& recipe, int64_t num_micro_batches);
/// The stepper of the recipe's techniques. Every rank calls it; everything in `inputs` outlives the stepper. Throws as
/// the steppers do.
std::unique_ptr<Stepper> make_stepper(StepperInputs inputs, const Recipe& recipe);

}  // namespace caravan
