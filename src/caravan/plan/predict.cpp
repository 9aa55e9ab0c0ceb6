#include "caravan/plan/predict.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/cost/constants.h"
#include "caravan/module/meta/accelerator_scope.h"
#include "caravan/nn/experts/expert_rows.h"
#include "caravan/schedule/stages.h"
#include "caravan/train/model/offload_choice.h"
#include "caravan/train/model/rehearse.h"

namespace caravan {
namespace {

/// A smaller step of the same kind.
struct StepSizes {
  std::vector<int64_t> layers{};  ///< of each stage
  int64_t micro_batches = 0;
};

Recipe with_sizes(Recipe recipe, const StepSizes& sizes, const BatchPlan& plan) {
  recipe.model = first_layers(recipe.model, std::accumulate(sizes.layers.begin(), sizes.layers.end(), int64_t{0}));
  recipe.optimizer.groups.clear();  // they may name a layer that is left out, and take no time
  if (!recipe.pipeline.is_used()) return recipe;
  recipe.pipeline.schedule.set("cut", sizes.layers);
  recipe.pipeline.schedule.set("micro_batches", sizes.micro_batches);
  recipe.train.global_batch = plan.dp * plan.micro_batch * sizes.micro_batches;
  return recipe;
}

/// Layers of each stage of the whole model, as its pipeline cuts it.
std::vector<int64_t> layers_of_stages(const Recipe& recipe) {
  if (!recipe.pipeline.is_used()) return {recipe.model.layers};
  const std::vector<int> stages = stage_of_units(recipe.pipeline, recipe.model, unit_flops(recipe.model));
  std::vector<int64_t> layers(static_cast<size_t>(recipe.pipeline.num_stages()));
  for (size_t unit = 1; unit + 1 < stages.size(); ++unit) ++layers[static_cast<size_t>(stages[unit])];
  return layers;
}

/// The two sizes between which a line is drawn; equal if the step is small enough for a whole rehearsal. Every stage
/// has as many layers fewer, so that the slowest one stays it.
std::pair<StepSizes, StepSizes> few_sizes(const Recipe& recipe, const BatchPlan& plan) {
  const StepSizes whole{layers_of_stages(recipe), plan.accumulation};
  std::pair<StepSizes, StepSizes> few{whole, whole};
  // The first and the last layers are not like others.
  const int64_t least = whole.layers.size() == 1 ? 4 : 1, fewest = std::ranges::min(whole.layers);
  if (fewest > least + 1) {
    for (int64_t& layers : few.first.layers) layers -= fewest - least;
    for (int64_t& layers : few.second.layers) layers -= fewest - least - 1;
  }
  const int64_t ranks = recipe.pipeline.degree;
  if (recipe.pipeline.is_used() && whole.micro_batches > 4 * ranks && whole.micro_batches % ranks == 0) {
    few.first.micro_batches = 2 * ranks;
    few.second.micro_batches = 3 * ranks;
  }
  return few;
}

/// What the fullest rank computes for its experts, in times of the mean. Others wait for it.
double fullest_load(const Recipe& recipe) {
  const int64_t ranks = recipe.expert_parallel.degree;
  if (!recipe.model.moe.is_used() || ranks == 1) return 1;
  // Experts are over or under their mean independently of each other.
  const auto of_rank = static_cast<double>(recipe.model.moe.experts) / static_cast<double>(ranks);
  return 1 + fitted::kExpertOverload / std::sqrt(std::max(1.0, of_rank));
}

double share(int64_t from, int64_t to, int64_t at) {
  return from == to ? 0 : static_cast<double>(at - from) / static_cast<double>(to - from);
}

}  // namespace

int ranks_sharing_memory(const Recipe& recipe, int per_host) {
  const std::string& backend = recipe.comm.backend;
  const bool has_shared =
      backend == "auto" || backend == "thread" || backend == "hierarchical" || backend.starts_with("shm");
  return has_shared ? per_host : 0;
}

Predictor::Predictor(const Hardware& hardware, const StepCosts& costs, int num_ranks, int64_t vocabulary)
    : hardware_(hardware), costs_(costs), num_ranks_(num_ranks), vocabulary_(vocabulary) {
  if (num_ranks >= 1 && num_ranks <= hardware.num_devices()) return;
  throw UsageError({"plan", "--ranks",
                    fmt::format("{} ranks do not fit {} device{}", num_ranks, hardware.num_devices(),
                                hardware.num_devices() == 1 ? "" : "s"),
                    hardware.name, "use fewer ranks, or describe more hosts"});
}

Rehearsal Predictor::rehearse_rank(const Recipe& recipe, int rank, int num_ranks,
                                   const std::shared_ptr<RecordedNumbers>& numbers) const {
  const bool is_accelerator = !hardware_.device_of(0).is_processor;
  // Ranks of accelerators have memory of their own.
  const auto per_host = static_cast<int>(hardware_.hosts.front().devices);
  const int sharing = is_accelerator ? 0 : ranks_sharing_memory(recipe, per_host);
  const AcceleratorScope scope(is_accelerator);
  const ExpertLoadScope load(fullest_load(recipe));
  return rehearse(recipe, vocabulary_, num_ranks, rank, sharing, numbers);
}

Rehearsal Predictor::rehearse_rank(const Recipe& recipe, int rank) const {
  return rehearse_rank(recipe, rank, num_ranks_, std::make_shared<RecordedNumbers>());
}

std::vector<Rehearsal> Predictor::rehearse_places(const Recipe& recipe, int num_ranks) const {
  const auto numbers = std::make_shared<RecordedNumbers>();
  const int of_place = num_ranks / static_cast<int>(recipe.pipeline.degree);
  std::vector<Rehearsal> all;
  for (int place = 0; place < recipe.pipeline.degree; ++place) {
    // The first ranks of all places are one pipeline.
    const int first = place * of_place;
    all.push_back(rehearse_rank(recipe, first, num_ranks, numbers));
    if (num_ranks > hardware_.num_devices()) continue;  // of no device
    all.back().slowest_rank = slowest_rank(hardware_, first, of_place, recipe.precision.compute);
    all.back().room_bytes = room_of(hardware_, first, of_place);
  }
  return all;
}

Prediction Predictor::predict(const Recipe& recipe, std::vector<SimulatedStep::Span>* spans) const {
  Prediction prediction = predict_rehearsed(rehearse_places(recipe), costs_, spans);
  complete(prediction, hardware_, num_ranks_, work_of(recipe));
  return prediction;
}

StepWork Predictor::work_of(const Recipe& recipe) const {
  ModelConfig model = recipe.model;
  if (model.vocabulary == 0) model.vocabulary = vocabulary_;
  const auto rows = static_cast<double>(recipe.train.global_batch);
  const double tokens = rows * static_cast<double>(model.row_length() * recipe.data.task.sequences());
  return {.rows = rows,
          .tokens = tokens,
          .flops = model.flops_per_token(model.context) * tokens,
          .dtype = recipe.precision.compute,
          .budget_bytes = device_budget(recipe),
          .is_update_delayed = recipe.offload.reads("delayed_update") && recipe.offload.flag("delayed_update")};
}

int64_t Predictor::room_bytes(const Recipe& recipe, int place, int64_t places) const {
  const int of_place = num_ranks_ / static_cast<int>(places);
  const int64_t room = room_of(hardware_, place * of_place, of_place), budget = device_budget(recipe);
  return budget > 0 ? std::min(room, budget) : room;
}

Prediction Predictor::estimate(const Recipe& recipe) const {
  const BatchPlan plan = plan_batch(recipe, num_ranks_);
  const auto [low, high] = few_sizes(recipe, plan);
  const bool has_layers = low.layers != high.layers, has_batches = low.micro_batches != high.micro_batches;
  if (!has_layers && !has_batches) return predict(recipe);
  const double of_layers = share(low.layers.front(), high.layers.front(), layers_of_stages(recipe).front());
  const auto rehearsed = [&](const std::vector<int64_t>& layers, int64_t micro_batches) {
    return rehearse_places(with_sizes(recipe, {layers, micro_batches}, plan));
  };
  const auto repeated = [&](const std::vector<int64_t>& layers, const RepeatedBatches& batches, bool& is_repeated) {
    return predict_repeated(rehearsed(layers, batches.few), rehearsed(layers, batches.more), batches, costs_,
                            &is_repeated);
  };
  // Where a rank has one stage, each micro-batch after the first ones repeats the passes of the one before, in most
  // schedules, with as many in flight. It takes few of them to see that.
  const int64_t ranks = recipe.pipeline.degree, all = plan.accumulation;
  const RepeatedBatches soon{ranks + 1, ranks + 2, all};
  const bool is_soon = has_batches && recipe.pipeline.chunks() == 1 &&
                       RepeatedBatches::of(recipe.pipeline, ranks, ranks + 1, all).is_full();
  const RepeatedBatches far =
      has_batches ? RepeatedBatches::of(recipe.pipeline, low.micro_batches, high.micro_batches, all) : soon;
  Prediction sum;
  for (const bool more_layers : {false, true}) {
    if (more_layers && !has_layers) continue;
    const std::vector<int64_t>& layers = more_layers ? high.layers : low.layers;
    bool is_repeated = false;
    Prediction one;
    if (is_soon) one = repeated(layers, soon, is_repeated);
    if (has_batches && !is_repeated) one = repeated(layers, far, is_repeated);
    if (!has_batches) one = predict_rehearsed(rehearsed(layers, low.micro_batches), costs_);
    add_share(sum, one, more_layers ? of_layers : 1 - of_layers);
  }
  complete(sum, hardware_, num_ranks_, work_of(recipe));
  return sum;
}

}  // namespace caravan
