#include "caravan/plan/predict.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/train/model/rehearse.h"

namespace caravan {
namespace {

/// Numbers that are linear in layers and micro-batches.
void add(Prediction& sum, const Prediction& one, double times) {
  sum.seconds += times * one.seconds;
  sum.computes += times * one.computes;
  sum.of_products += times * one.of_products;
  sum.idles += times * one.idles;
  sum.on_host += times * one.on_host;
  for (const auto& [axis, seconds] : one.waits) sum.waits[axis] += times * seconds;
}

void add(MemoryBytes& sum, const MemoryBytes& one, double times) {
  for (size_t kind = 0; kind < sum.of.size(); ++kind) {
    sum.of[kind] += std::llround(times * static_cast<double>(one.of[kind]));
  }
}

/// A smaller step of the same kind: other numbers of layers and of micro-batches.
struct Sizes {
  int64_t layers;
  int64_t micro_batches;
};

Recipe with_sizes(Recipe recipe, const Sizes& sizes, const BatchPlan& plan) {
  recipe.model.layers = sizes.layers;
  if (!recipe.pipeline.is_used()) return recipe;
  recipe.pipeline.schedule.set("micro_batches", sizes.micro_batches);
  recipe.train.global_batch = plan.dp * plan.micro_batch * sizes.micro_batches;
  return recipe;
}

/// The two sizes between which a line is drawn; equal if the step is small enough for a whole rehearsal.
std::pair<Sizes, Sizes> few_sizes(const Recipe& recipe, const BatchPlan& plan) {
  const Sizes whole{recipe.model.layers, plan.accumulation};
  const int64_t stages = recipe.pipeline.is_used() ? recipe.pipeline.num_stages() : 1;
  const bool has_even_stages = whole.layers % stages == 0 && recipe.pipeline.layers().empty();
  std::pair<Sizes, Sizes> few{whole, whole};
  const int64_t least = stages == 1 ? 4 : 1;  // layers of a stage; the first and the last ones are not like others
  if (has_even_stages && whole.layers > (least + 1) * stages) {
    few.first.layers = least * stages;
    few.second.layers = (least + 1) * stages;
  }
  const int64_t ranks = recipe.pipeline.degree;
  if (recipe.pipeline.is_used() && whole.micro_batches > 4 * ranks && whole.micro_batches % ranks == 0) {
    few.first.micro_batches = 2 * ranks;
    few.second.micro_batches = 3 * ranks;
  }
  return few;
}

double share(int64_t from, int64_t to, int64_t at) {
  return from == to ? 0 : static_cast<double>(at - from) / static_cast<double>(to - from);
}

}  // namespace

Predictor::Predictor(const Hardware& hardware, const StepCosts& costs, int num_ranks, int64_t vocabulary)
    : hardware_(hardware), costs_(costs), num_ranks_(num_ranks), vocabulary_(vocabulary) {
  if (num_ranks >= 1 && num_ranks <= hardware.num_devices()) return;
  throw UsageError({"plan", "--ranks",
                    fmt::format("{} ranks do not fit {} device{}", num_ranks, hardware.num_devices(),
                                hardware.num_devices() == 1 ? "" : "s"),
                    hardware.name, "use fewer ranks, or describe more hosts"});
}

std::vector<Rehearsal> Predictor::rehearse_places(const Recipe& recipe) const {
  const auto numbers = std::make_shared<RecordedNumbers>();
  const int of_place = num_ranks_ / static_cast<int>(recipe.pipeline.degree);
  const auto per_host = static_cast<int>(hardware_.hosts.front().devices);
  std::vector<Rehearsal> all;
  for (int place = 0; place < recipe.pipeline.degree; ++place) {
    all.push_back(rehearse(recipe, vocabulary_, num_ranks_, place * of_place, per_host, numbers));
  }
  return all;
}

void Predictor::add_rates(Prediction& prediction, const Recipe& recipe) const {
  ModelConfig model = recipe.model;
  if (model.vocabulary == 0) model.vocabulary = vocabulary_;
  const double tokens = static_cast<double>(recipe.train.global_batch) * static_cast<double>(model.context);
  prediction.tokens_per_second = tokens / prediction.seconds;
  double peak = 0;
  for (int rank = 0; rank < num_ranks_; ++rank) {
    const ProductRate* rate = hardware_.device_of(rank).product(recipe.precision.compute);
    if (rate != nullptr) peak += rate->peak_flops > 0 ? rate->peak_flops : rate->flops;
  }
  const double flops = model.flops_per_token(model.context) * tokens;
  prediction.utilisation = peak > 0 ? flops / prediction.seconds / peak : 0;
  const HardwareDevice& device = hardware_.device_of(prediction.fullest_rank);
  prediction.room_bytes = device.memory_bytes - device.reserved_bytes;
}

Prediction Predictor::predict(const Recipe& recipe, std::vector<SimulatedStep::Span>* spans) const {
  const std::vector<Rehearsal> rehearsals = rehearse_places(recipe);
  const auto simulated = [&](const auto& timeline_of, bool keeps) {
    std::vector<RankTimeline> ranks;
    for (const Rehearsal& one : rehearsals) ranks.push_back({one.rank, &timeline_of(one), &one.ranks_of_axis});
    return simulate(ranks, costs_, keeps);
  };
  const auto numbers_of = [](const SimulatedStep& step) {
    const auto slowest = std::ranges::max_element(step.ranks, {}, &SimulatedStep::OfRank::computes);
    Prediction one{.seconds = step.seconds, .computes = slowest->computes, .of_products = slowest->of_products};
    one.waits = slowest->exposed;
    one.idles = step.seconds - slowest->seconds;
    one.on_host = slowest->on_host;
    return one;
  };
  const SimulatedStep step =
      simulated([](const Rehearsal& one) -> const StepTimeline& { return one.timeline; }, spans != nullptr);
  if (spans != nullptr) *spans = step.spans;
  const Prediction base = numbers_of(step);
  Prediction prediction = base;
  for (size_t i = 0; i < rehearsals.front().shorter.size(); ++i) {
    const double times = rehearsals.front().shorter[i].times;
    const SimulatedStep shorter = simulated(
        [i](const Rehearsal& one) -> const StepTimeline& { return one.shorter[i].timeline; }, /*keeps=*/false);
    add(prediction, base, times);
    add(prediction, numbers_of(shorter), -times);
  }
  const double steps = rehearsals.front().num_steps;
  Prediction of_step;
  add(of_step, prediction, 1 / steps);
  for (const Rehearsal& one : rehearsals) {
    if (one.peak.total() <= of_step.memory.total()) continue;
    of_step.memory = one.peak;
    of_step.fullest_rank = one.rank;
    of_step.peak_event = one.peak_event;
  }
  for (const Rehearsal& one : rehearsals) add_offload(of_step, one);
  add_rates(of_step, recipe);
  return of_step;
}

/// Copies run beside the step, the slower direction or the disk is the limit; the host steps beside the next forward,
/// a third of the computation.
void Predictor::add_offload(Prediction& prediction, const Rehearsal& rank) const {
  const HardwareDevice& device = hardware_.device_of(rank.rank);
  const HostKind& host = hardware_.host_of(rank.rank);
  const auto devices = static_cast<double>(host.devices);
  const double copies = std::max(rank.moved.to_host, rank.moved.from_host) / device.host_bytes_per_second;
  const auto on_disk = [&](double bytes, double rate) { return bytes > 0 ? bytes * devices / std::max(rate, 1.0) : 0; };
  const double disk = on_disk(rank.moved.to_disk, host.disk_write_bytes_per_second) +
                      on_disk(rank.moved.from_disk, host.disk_read_bytes_per_second);
  const double moves = rank.moved.to_host + rank.moved.from_host > 0 ? std::max(copies, disk) : 0;
  const double waits =
      std::max(0.0, moves - prediction.seconds) + std::max(0.0, prediction.on_host - prediction.computes / 3);
  const double more = waits - prediction.waits["host"];
  if (more > 0) {
    prediction.seconds += more;
    prediction.waits["host"] = waits;
  }
  if (prediction.waits["host"] <= 0) prediction.waits.erase("host");
}

Prediction Predictor::estimate(const Recipe& recipe) const {
  const BatchPlan plan = plan_batch(recipe, num_ranks_);
  const auto [low, high] = few_sizes(recipe, plan);
  const bool has_layers = low.layers != high.layers, has_batches = low.micro_batches != high.micro_batches;
  if (!has_layers && !has_batches) return predict(recipe);
  const double of_layers = share(low.layers, high.layers, recipe.model.layers);
  const double of_batches = share(low.micro_batches, high.micro_batches, plan.accumulation);
  Prediction sum;
  for (const bool more_layers : {false, true}) {
    for (const bool more_batches : {false, true}) {
      if ((more_layers && !has_layers) || (more_batches && !has_batches)) continue;
      const Sizes sizes{more_layers ? high.layers : low.layers, more_batches ? high.micro_batches : low.micro_batches};
      const Prediction one = predict(with_sizes(recipe, sizes, plan));
      const double of_layer = more_layers ? of_layers : 1 - of_layers;
      const double of_batch = more_batches ? of_batches : 1 - of_batches;
      add(sum, one, of_layer * of_batch);
      // More micro-batches than that many are never in flight at once.
      if (more_batches == has_batches) add(sum.memory, one.memory, of_layer);
      sum.fullest_rank = one.fullest_rank;
      sum.peak_event = one.peak_event;
    }
  }
  add_rates(sum, recipe);
  return sum;
}

}  // namespace caravan
