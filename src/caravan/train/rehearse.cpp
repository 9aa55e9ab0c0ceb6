#include "caravan/train/rehearse.h"

#include <algorithm>
#include <memory>
#include <set>

#include <ATen/ops/empty.h>

#include "caravan/checkpoint/background_save.h"
#include "caravan/checkpoint/state_checkpoint.h"
#include "caravan/step/batch.h"
#include "caravan/train/trained_model.h"

namespace caravan {
namespace {

constexpr int64_t kMicroBatches = 3;  ///< the first, one of those between, the last
constexpr int64_t kStepsOfRound = 2;  ///< of ranks that step apart for a while
constexpr int kAllRanks = 8;          ///< so many are all looked at

/// What lives as long as the steps.
struct Rehearsed {
  Recipe recipe;
  BatchPlan plan;
  Mesh mesh;
  TrainedModel trained;
  std::unique_ptr<Stepper> stepper{};
  std::unique_ptr<Stepper> shorter{};
  at::Tensor copy{};  ///< of the checkpoint

  Rehearsed(Recipe of, const ModelConfig& config, Mesh on)
      : recipe(std::move(of)),
        plan(plan_batch(recipe, on.size())),
        mesh(std::move(on)),
        trained(recipe, config, mesh, {}, at::kMeta) {}

  std::unique_ptr<Stepper> stepper_of(int64_t num_micro_batches);
  TrainBatch batch(int64_t step, int64_t num_micro_batches) const;
  void advance(Stepper& by, int64_t num_micro_batches, int64_t num_steps = 1);
};

/// No message ever comes: what waits for some is rehearsed with a barrier.
std::unique_ptr<Stepper> Rehearsed::stepper_of(int64_t num_micro_batches) {
  StepperInputs inputs = stepper_inputs(trained, recipe, num_micro_batches);
  if (!recipe.data_parallel.has(Trait::rehearses)) return make_sync_stepper(inputs);
  return make_stepper(std::move(inputs), recipe);
}

/// All rows of the rank, of which the step takes those of so many micro-batches.
TrainBatch Rehearsed::batch(int64_t step, int64_t num_micro_batches) const {
  const int64_t context = trained.model->config().context;
  const bool has_documents = recipe.data.packs_documents();
  const auto make = [&](int64_t, int64_t rows) {
    const auto ids = [&] { return at::empty({rows, context}, at::TensorOptions(at::kLong).device(at::kMeta)); };
    TrainBatch batch{.ids = ids(), .labels = ids()};
    if (has_documents) batch.positions = ids();
    if (has_documents) batch.documents = ids();
    return batch;
  };
  const auto num_targets = [&](int64_t, int64_t rows) { return rows * context; };
  TrainBatch all = make_rank_batch(*trained.engine, {.context = context, .make = make, .num_targets = num_targets},
                                   step, recipe.train.global_batch);
  const int64_t rows = all.ids.size(0) / plan.accumulation * num_micro_batches;
  for (at::Tensor* tensor : all.tensors()) *tensor = tensor->narrow(0, 0, rows);
  return all;
}

void Rehearsed::advance(Stepper& by, int64_t num_micro_batches, int64_t num_steps) {
  const auto batch_of = [&](int64_t step) { return batch(step, num_micro_batches); };
  by.start_at(0, {});  // so that a window or a round begins
  by.advance(num_steps, batch_of, nullptr);
}

/// As many steps as fill and drain the stages of a window, and two in which all versions of the weights are there.
void shorten_window(Recipe& recipe, int64_t accumulation) {
  if (!recipe.pipeline.has_windows()) return;
  Setting& schedule = recipe.pipeline.schedule;
  const int64_t end = next_due(recipe, 0, std::max<int64_t>(recipe.train.steps, 1));
  const int64_t enough = (2 * recipe.pipeline.degree + accumulation - 1) / accumulation + 2;
  schedule.set("drain", std::min({schedule.whole("drain"), end, enough}));
}

}  // namespace

Rehearsal rehearse(const Recipe& recipe, int64_t vocabulary, int num_ranks, int rank, int ranks_per_host,
                   const std::shared_ptr<RecordedNumbers>& numbers) {
  ModelConfig config = recipe.model;
  if (config.vocabulary == 0) config.vocabulary = vocabulary;
  const int of_stage = num_ranks / static_cast<int>(recipe.pipeline.degree);
  if (rank >= of_stage && numbers->empty()) {
    rehearse(recipe, vocabulary, num_ranks, rank % of_stage, ranks_per_host, numbers);
  }
  const RehearsedWorld world{
      .axes = mesh_axes(recipe, num_ranks), .rank = rank, .ranks_per_host = ranks_per_host, .numbers = numbers};
  return rehearse(world, [&](const Mesh& mesh) {
    Recipe own = recipe;
    const int64_t count = plan_batch(recipe, num_ranks).accumulation;
    shorten_window(own, count);
    const auto made = std::make_shared<Rehearsed>(own, config, mesh);
    const int64_t few = recipe.pipeline.is_used() ? count : std::min(count, kMicroBatches);
    made->stepper = made->stepper_of(few);
    const int64_t num_steps = made->stepper->steps_at_once();
    const bool has_rounds = num_steps > 1 && !recipe.pipeline.has_windows();
    const int64_t taken = has_rounds ? count : few;
    const int64_t steps_taken = has_rounds ? std::min(num_steps, kStepsOfRound) : num_steps;
    if (taken > few) made->stepper = made->stepper_of(taken);
    RehearsedSteps steps{.step =
                             [made, taken, steps_taken, copies = recipe.checkpoint.async] {
                               made->advance(*made->stepper, taken, steps_taken);
                               if (!copies || made->copy.defined()) return;
                               const auto pieces = checkpoint_pieces(made->trained.tensors, made->mesh);
                               made->copy = at::empty({BackgroundSave::bytes_of_copy(pieces)},
                                                      at::TensorOptions(at::kByte).device(at::kMeta));
                             },
                         .num_left_out = has_rounds ? num_steps - steps_taken : count - taken,
                         .num_steps = num_steps};
    if (taken < count) {
      made->shorter = made->stepper_of(taken - 1);  // whose ranks compare their tables here, and not in a step
      steps.shorter = [made, taken] { made->advance(*made->shorter, taken - 1); };
    }
    if (steps_taken < num_steps) {
      made->shorter = made->stepper_of(taken);
      steps.shorter = [made, taken, steps_taken] { made->advance(*made->shorter, taken, steps_taken - 1); };
    }
    return steps;
  });
}

std::vector<int> telling_ranks(const Recipe& recipe, int num_ranks) {
  std::set<int> ranks;
  if (num_ranks <= kAllRanks) {
    for (int rank = 0; rank < num_ranks; ++rank) ranks.insert(rank);
    return {ranks.begin(), ranks.end()};
  }
  const auto stages = static_cast<int>(recipe.pipeline.degree);
  const int of_stage = num_ranks / stages;
  const int told = std::min(stages, kAllRanks / 2);
  for (int i = 0; i < told; ++i) {
    const int stage = told == 1 ? 0 : i * (stages - 1) / (told - 1);
    ranks.insert({stage * of_stage, stage * of_stage + of_stage - 1});
  }
  return {ranks.begin(), ranks.end()};
}

std::vector<Rehearsal> rehearse_telling_ranks(const Recipe& recipe, int64_t vocabulary, int num_ranks,
                                              int ranks_per_host) {
  const auto numbers = std::make_shared<RecordedNumbers>();
  std::vector<Rehearsal> all;
  for (const int rank : telling_ranks(recipe, num_ranks)) {
    all.push_back(rehearse(recipe, vocabulary, num_ranks, rank, ranks_per_host, numbers));
  }
  return all;
}

}  // namespace caravan
