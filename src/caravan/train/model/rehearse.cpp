#include "caravan/train/model/rehearse.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include <ATen/ops/empty.h>

#include "caravan/base/memory/memory_counter.h"
#include "caravan/formats/checkpoint/background_save.h"
#include "caravan/formats/checkpoint/state_checkpoint.h"
#include "caravan/recipe/init_from.h"
#include "caravan/registry/registry.h"
#include "caravan/schedule/pipeline_schedule.h"
#include "caravan/schedule/stages.h"
#include "caravan/step/batch.h"
#include "caravan/techniques/technique_body.h"
#include "caravan/train/dataset/task_dataset.h"
#include "caravan/train/model/reference_model.h"
#include "caravan/train/model/trained_model.h"

namespace caravan {
namespace {

constexpr int kAllRanks = 8;  ///< up to this number, all are rehearsed

at::Tensor bytes(int64_t count) { return at::empty({count}, at::TensorOptions(at::kByte).device(at::kMeta)); }

/// Most steps of a run with delayed updates delay them.
Recipe with_delay(Recipe recipe) {
  if (recipe.offload.flag("delayed_update") && recipe.train.steps > recipe.offload.whole("delay_after")) {
    recipe.offload.set("delay_after", int64_t{0});
  }
  return recipe;
}

/// What lives as long as the steps.
struct Rehearsed {
  Recipe recipe;
  BatchPlan plan;
  Mesh mesh;
  TrainedModel trained;
  std::unique_ptr<ReferenceModel> reference{};  ///< null: none, or unknown
  std::unique_ptr<Stepper> stepper{};
  std::unique_ptr<Stepper> shorter{};
  at::Tensor copy{};  ///< of the checkpoint, if one is written in the background

  Rehearsed(Recipe of, const ModelConfig& config, const Mesh& on)
      : recipe(std::move(of)),
        plan(plan_batch(recipe, on.size())),
        mesh(on),
        trained(with_delay(recipe), config, mesh, {}, at::kMeta) {
    const bool has_reference = recipe.model.lora.is_used() || !reference_folder(recipe).empty();
    if (!recipe.data.task.has_preferences() || !has_reference) return;
    reference = std::make_unique<ReferenceModel>(recipe, *trained.engine, on);
  }

  std::unique_ptr<Stepper> stepper_of(int64_t num_micro_batches);
  int64_t most_in_flight() const;
  TrainBatch batch(int64_t step, int64_t num_micro_batches) const;
  void advance(Stepper& by, int64_t num_micro_batches, int64_t num_steps);
  void run(int64_t num_micro_batches, int64_t num_steps);
};

std::unique_ptr<Stepper> Rehearsed::stepper_of(int64_t num_micro_batches) {
  StepperInputs inputs = stepper_inputs(trained, recipe, num_micro_batches);
  if (!rehearses_own_steps(recipe)) return make_sync_stepper(inputs);
  return make_stepper(std::move(inputs), recipe);
}

/// Bytes of messages that no rehearsed step has.
int64_t Rehearsed::most_in_flight() const {
  int64_t bytes = 0;
  for (const Setting& technique : techniques_of(recipe)) {
    if (!technique.has(Trait::rehearses)) bytes += body_of(technique).most_in_flight(*trained.engine);
  }
  return bytes;
}

/// All rows of the rank; the step takes the rows of `num_micro_batches` micro-batches.
TrainBatch Rehearsed::batch(int64_t step, int64_t num_micro_batches) const {
  const RowShape shape = row_shape(recipe);
  const auto make = [&](int64_t, int64_t rows) { return empty_batch(shape, rows, at::kMeta); };
  const auto num_targets = [&](int64_t, int64_t rows) { return rows * shape.length; };
  TrainBatch all = make_rank_batch(*trained.engine, {.context = shape.length, .make = make, .num_targets = num_targets},
                                   step, recipe.train.global_batch);
  const int64_t rows = all.ids.size(0) / plan.accumulation * num_micro_batches;
  for (at::Tensor* tensor : all.tensors()) *tensor = tensor->narrow(0, 0, rows);
  if (reference) {
    reference->score(all, num_micro_batches);
  } else if (recipe.data.task.has_preferences()) {
    all.preference =
        PreferencePass{.settings = preference_settings(recipe.data.task.preference),
                       .reference = at::empty({rows, all.sequences}, all.ids.options().dtype(at::kDouble))};
  }
  return all;
}

void Rehearsed::advance(Stepper& by, int64_t num_micro_batches, int64_t num_steps) {
  const auto batch_of = [&](int64_t step) { return batch(step, num_micro_batches); };
  by.start_at(0, {});  // so that a window or a round begins
  by.advance(num_steps, batch_of, nullptr);
}

/// Runs with everything that exists besides the step.
void Rehearsed::run(int64_t num_micro_batches, int64_t num_steps) {
  at::Tensor messages;
  {
    const MemoryKindScope kind(MemoryKind::buffers);
    messages = bytes(most_in_flight());
  }
  advance(*stepper, num_micro_batches, num_steps);
  if (!recipe.checkpoint.async || copy.defined()) return;
  const at::Tensor made = bytes(BackgroundSave::bytes_of_copy(checkpoint_pieces(trained.tensors, mesh)));
  const auto comes_before_the_end = [&](int64_t every) { return every > 0 && every < recipe.train.steps; };
  const bool is_kept = comes_before_the_end(recipe.checkpoint.every) ||
                       (recipe.checkpoint.keep_best && comes_before_the_end(recipe.train.eval_every));
  if (is_kept) copy = made;  // steps follow
}

/// Steps between boundaries of a stepper, in the first million of the run.
struct Stretches {
  double mean = 1;
  int64_t longest = 1;
};
Stretches stretches_of(const Recipe& recipe, int64_t steps_at_once) {
  constexpr int64_t kMost = 1'000'000;
  if (steps_at_once == 1) return {};
  const int64_t end = std::clamp<int64_t>(recipe.train.steps, 1, kMost);
  int64_t count = 0, longest = 1;
  for (int64_t step = 0; step < end; ++count) {
    const int64_t next = std::min(next_due(recipe, step, end), (step / steps_at_once + 1) * steps_at_once);
    longest = std::max(longest, next - step);
    step = next;
  }
  return {static_cast<double>(end) / static_cast<double>(count), longest};
}

/// Among the pipeline coordinates with equal numbers of layers, embeddings and heads, the one that keeps the most.
std::vector<int> telling_places(const Recipe& recipe, int64_t micro_batches) {
  const PipelineChoice& pipeline = recipe.pipeline;
  if (!pipeline.is_used()) return {0};
  // In a window micro-batches of several steps are in flight.
  const int64_t steps = pipeline.is_asynchronous() ? (2 * pipeline.degree + micro_batches - 1) / micro_batches : 1;
  const PipelineOrder order =
      pipeline_order(pipeline, static_cast<int>(micro_batches * steps), recipe.memory.recompute.entry().repeats_stages);
  const std::vector<int> stages = stage_of_units(pipeline, recipe.model, unit_flops(recipe.model));
  struct Holds {
    int64_t layers = 0;
    bool first = false, last = false;
    auto operator<=>(const Holds&) const = default;
  };
  std::vector<Holds> of_place(order.ranks.size());
  for (size_t unit = 0; unit < stages.size(); ++unit) {
    Holds& holds = of_place[static_cast<size_t>(order.rank_of_stage[static_cast<size_t>(stages[unit])])];
    ++holds.layers;
    holds.first = holds.first || unit == 0;
    holds.last = holds.last || unit + 1 == stages.size();
  }
  const std::vector<HeldActivations> held = held_activations(order);
  std::map<Holds, int> fullest;
  for (size_t place = 0; place < held.size(); ++place) {
    const auto [found, is_new] = fullest.try_emplace(of_place[place], static_cast<int>(place));
    const HeldActivations& most = held[static_cast<size_t>(found->second)];
    const bool keeps_more =
        std::pair(held[place].activations, held[place].inputs) > std::pair(most.activations, most.inputs);
    if (!is_new && keeps_more) found->second = static_cast<int>(place);
  }
  std::vector<int> places;
  for (const auto& [holds, place] : fullest) places.push_back(place);
  return places;
}

}  // namespace

Rehearsal rehearse(const Recipe& recipe, int64_t vocabulary, int num_ranks, int rank, int ranks_per_host,
                   const std::shared_ptr<RecordedNumbers>& numbers) {
  ModelConfig config = recipe.model;
  if (config.vocabulary == 0) config.vocabulary = vocabulary;
  const int64_t micro_batches = plan_batch(recipe, num_ranks).accumulation;
  const int of_stage = num_ranks / static_cast<int>(recipe.pipeline.degree);
  if (rank >= of_stage && numbers->empty()) {
    rehearse(recipe, vocabulary, num_ranks, rank % of_stage, ranks_per_host, numbers);
  }
  const RehearsedWorld world{
      .axes = mesh_axes(recipe, num_ranks), .rank = rank, .ranks_per_host = ranks_per_host, .numbers = numbers};
  return rehearse(world, [&](const Mesh& mesh) {
    const auto made = std::make_shared<Rehearsed>(recipe, config, mesh);
    const int64_t few = recipe.pipeline.is_used() ? micro_batches : std::min(micro_batches, kRehearsedMicroBatches);
    made->stepper = made->stepper_of(few);
    if (StateOwner* own = made->stepper->state()) made->trained.tensors.add(*own);
    const Stretches stretches = stretches_of(recipe, made->stepper->steps_at_once());
    const int64_t few_steps = std::min(stretches.longest, made->stepper->enough_steps());
    Engine& engine = *made->trained.engine;
    const bool has_chunks = engine.strategy().chunks.num_chunks > 0;
    RehearsedSteps steps{.step = [made, few, few_steps] { made->run(few, few_steps); }, .num_steps = stretches.mean};
    if (has_chunks) steps.chunks = chunk_report(engine, static_cast<int>(few));
    if (few_steps > 1 && stretches.mean != static_cast<double>(few_steps)) {
      steps.shorter.push_back({[made, few, few_steps] { made->advance(*made->stepper, few, few_steps - 1); },
                               stretches.mean - static_cast<double>(few_steps), /*is_run_twice=*/true});
    }
    if (few < micro_batches) {
      made->shorter = made->stepper_of(few - 1);  // its ranks compare their tables here, and not in a step
      steps.shorter.push_back(
          {[made, few, few_steps] { made->advance(*made->shorter, few - 1, few_steps); },
           static_cast<double>(micro_batches - few) * stretches.mean / static_cast<double>(few_steps)});
    }
    return steps;
  });
}

bool rehearses_own_steps(const Recipe& recipe) {
  return std::ranges::all_of(techniques_of(recipe), [](const Setting& each) { return each.has(Trait::rehearses); });
}

std::vector<int> telling_ranks(const Recipe& recipe, int num_ranks) {
  const int64_t micro_batches = plan_batch(recipe, num_ranks).accumulation;
  std::set<int> ranks;
  if (num_ranks <= kAllRanks) {
    for (int rank = 0; rank < num_ranks; ++rank) ranks.insert(rank);
    return {ranks.begin(), ranks.end()};
  }
  const int of_place = num_ranks / static_cast<int>(recipe.pipeline.degree);
  for (const int place : telling_places(recipe, micro_batches)) {
    ranks.insert({place * of_place, place * of_place + of_place - 1});
  }
  return {ranks.begin(), ranks.end()};
}

std::vector<Rehearsal> rehearse_telling_ranks(const Recipe& recipe, int64_t vocabulary, int num_ranks,
                                              int ranks_per_host) {
  const auto numbers = std::make_shared<RecordedNumbers>();
  std::vector<Rehearsal> all;
  Recipe known = recipe;
  if (known.model.vocabulary == 0) known.model.vocabulary = vocabulary;
  for (const int rank : telling_ranks(known, num_ranks)) {
    all.push_back(rehearse(recipe, vocabulary, num_ranks, rank, ranks_per_host, numbers));
  }
  return all;
}

}  // namespace caravan
