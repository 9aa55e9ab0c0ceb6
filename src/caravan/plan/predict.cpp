#include "caravan/plan/predict.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/cost/extend_timeline.h"
#include "caravan/cost/hardware_costs.h"
#include "caravan/module/meta/accelerator_scope.h"
#include "caravan/schedule/stages.h"
#include "caravan/train/model/offload_choice.h"
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
  sum.moved.to_host += times * one.moved.to_host;
  sum.moved.from_host += times * one.moved.from_host;
  sum.moved.to_disk += times * one.moved.to_disk;
  sum.moved.from_disk += times * one.moved.from_disk;
  for (const auto& [axis, seconds] : one.waits) sum.waits[axis] += times * seconds;
}

void add(MemoryBytes& sum, const MemoryBytes& one, double times) {
  for (size_t kind = 0; kind < sum.of.size(); ++kind) {
    sum.of[kind] += std::llround(times * static_cast<double>(one.of[kind]));
  }
}

Recipe with_sizes(Recipe recipe, const StepSizes& sizes, const BatchPlan& plan) {
  recipe.model.layers = std::accumulate(sizes.layers.begin(), sizes.layers.end(), int64_t{0});
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

double share(int64_t from, int64_t to, int64_t at) {
  return from == to ? 0 : static_cast<double>(at - from) / static_cast<double>(to - from);
}

}  // namespace

std::string wait_name(const std::string& axis) { return axis == "world" ? "the last rank" : axis; }

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

std::vector<Rehearsal> Predictor::rehearse_places(const Recipe& recipe) const {
  const auto numbers = std::make_shared<RecordedNumbers>();
  const int of_place = num_ranks_ / static_cast<int>(recipe.pipeline.degree);
  const bool is_accelerator = !hardware_.device_of(0).is_processor;
  // Ranks of accelerators have memory of their own.
  const auto per_host = static_cast<int>(hardware_.hosts.front().devices);
  const int sharing = is_accelerator ? 0 : ranks_sharing_memory(recipe, per_host);
  const AcceleratorScope scope(is_accelerator);
  std::vector<Rehearsal> all;
  for (int place = 0; place < recipe.pipeline.degree; ++place) {
    const int rank = slowest_of(place * of_place, of_place, recipe.precision.compute);
    all.push_back(rehearse(recipe, vocabulary_, num_ranks_, rank, sharing, numbers));
  }
  return all;
}

/// All ranks of a place do the same, so that the slowest device decides; the first of equal ones.
int Predictor::slowest_of(int first, int count, const std::string& dtype) const {
  if (hardware_.is_uniform()) return first;
  int slowest = first;
  for (int rank = first; rank < first + count; ++rank) {
    const auto flops = [&](int of) { return HardwareCosts::rate_of(hardware_.device_of(of), dtype).flops; };
    if (flops(rank) < flops(slowest)) slowest = rank;
  }
  return slowest;
}

void Predictor::add_rates(Prediction& prediction, const Recipe& recipe) const {
  ModelConfig model = recipe.model;
  if (model.vocabulary == 0) model.vocabulary = vocabulary_;
  const double tokens = static_cast<double>(recipe.train.global_batch) * static_cast<double>(model.context);
  prediction.tokens_per_second = tokens / prediction.seconds;
  double peak = 0;
  int64_t left = num_ranks_;
  for (const HostKind& host : hardware_.hosts) {
    const int64_t devices = std::min(left, host.count * host.devices);
    if (devices == 0) break;
    const HardwareDevice& device = hardware_.device_of(num_ranks_ - left);
    const ProductRate& rate = HardwareCosts::rate_of(device, recipe.precision.compute);
    peak += static_cast<double>(devices) * (rate.peak_flops > 0 ? rate.peak_flops : rate.flops);
    left -= devices;
  }
  const double flops = model.flops_per_token(model.context) * tokens;
  prediction.utilisation = peak > 0 ? flops / prediction.seconds / peak : 0;
  prediction.room_bytes = room_bytes(recipe);
  prediction.host_room_bytes = hardware_.host_of(prediction.fullest_rank).memory_bytes;
}

int64_t Predictor::room_bytes(const Recipe& recipe) const {
  int64_t room = 0, left = num_ranks_;
  for (const HostKind& host : hardware_.hosts) {
    if (left == 0) break;
    const HardwareDevice& device = hardware_.device_of(num_ranks_ - left);
    const int64_t own = device.memory_bytes - device.reserved_bytes;
    room = room == 0 ? own : std::min(room, own);
    left -= std::min(left, host.count * host.devices);
  }
  const int64_t budget = device_budget(recipe);
  return budget > 0 ? std::min(room, budget) : room;
}

Prediction Predictor::predict(const Recipe& recipe, std::vector<SimulatedStep::Span>* spans) const {
  Prediction prediction = without_offload(rehearse_places(recipe), spans);
  add_offload(prediction, recipe);
  add_rates(prediction, recipe);
  return prediction;
}

Prediction Predictor::without_offload(const std::vector<Rehearsal>& rehearsals,
                                      std::vector<SimulatedStep::Span>* spans) const {
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
    if (one.peak.total() > of_step.memory.total()) {
      of_step.memory = one.peak;
      of_step.fullest_rank = one.rank;
      of_step.peak_event = one.peak_event;
    }
    const Rehearsal::Moved& own = one.moved;
    of_step.moved.to_host = std::max(of_step.moved.to_host, own.to_host);
    of_step.moved.from_host = std::max(of_step.moved.from_host, own.from_host);
    of_step.moved.to_disk = std::max(of_step.moved.to_disk, own.to_disk);
    of_step.moved.from_disk = std::max(of_step.moved.from_disk, own.from_disk);
    const int64_t devices = hardware_.host_of(one.rank).devices;
    of_step.host_bytes = std::max(of_step.host_bytes, devices * one.host.total());
  }
  return of_step;
}

/// What offload adds to a step. Copies run beside it, the slower direction or the disk is the limit; the host steps
/// beside the next forward, a third of the computation, or with a delay beside all of it.
void Predictor::add_offload(Prediction& prediction, const Recipe& recipe) const {
  const Rehearsal::Moved& moved = prediction.moved;
  if (moved.to_host + moved.from_host <= 0) return;
  const HostKind& host = hardware_.host_of(prediction.fullest_rank);
  const double copies =
      std::max(moved.to_host, moved.from_host) / hardware_.device_of(prediction.fullest_rank).host_bytes_per_second;
  double disk = 0;
  if (moved.to_disk + moved.from_disk > 0) {
    if (host.disk_read_bytes_per_second <= 0 || host.disk_write_bytes_per_second <= 0) {
      throw UsageError({"plan", "offload", "the hosts of this hardware have no disks", hardware_.name,
                        "give disk_read and disk_write, or offload to the host"});
    }
    disk = static_cast<double>(host.devices) *
           (moved.to_disk / host.disk_write_bytes_per_second + moved.from_disk / host.disk_read_bytes_per_second);
  }
  const bool is_delayed = recipe.offload.reads("delayed_update") && recipe.offload.flag("delayed_update");
  const double beside = is_delayed ? prediction.computes : prediction.computes / 3;
  const double steps = std::max(0.0, prediction.on_host - beside);
  const double link = std::max(0.0, copies - prediction.seconds);
  const double files = std::max(0.0, disk - prediction.seconds);
  if (steps + std::max(link, files) <= 0) return;
  prediction.waits[files > link ? "disk" : "host"] = steps + std::max(link, files);
  prediction.seconds += steps + std::max(link, files);
}

/// Of a pipeline with `plan.accumulation` micro-batches, by steps with fewer. If these repeat a block of passes, by the
/// timeline with more blocks: a line through two times misses where what is sent once a step takes as long as few
/// micro-batches. Else by the line.
Prediction Predictor::with_micro_batches(const Recipe& recipe, const StepSizes& low, const StepSizes& high,
                                         const BatchPlan& plan) const {
  const std::vector<Rehearsal> few = rehearse_places(with_sizes(recipe, low, plan));
  std::vector<Rehearsal> more = rehearse_places(with_sizes(recipe, high, plan));
  const double times = share(low.micro_batches, high.micro_batches, plan.accumulation);
  const Prediction of_few = without_offload(few, nullptr), of_more = without_offload(more, nullptr);
  Prediction on_line;
  for (const auto& [one, weight] : {std::pair(&of_few, 1 - times), std::pair(&of_more, times)}) {
    add(on_line, *one, weight);
    add(on_line.memory, one->memory, weight);
    on_line.host_bytes += std::llround(weight * static_cast<double>(one->host_bytes));
    on_line.fullest_rank = one->fullest_rank;
    on_line.peak_event = one->peak_event;
  }
  const int64_t blocks = (plan.accumulation - low.micro_batches) / (high.micro_batches - low.micro_batches);
  for (size_t place = 0; place < few.size(); ++place) {
    auto extended = extend_timeline(few[place].timeline, more[place].timeline, blocks);
    if (!extended || !few[place].shorter.empty()) return on_line;
    more[place].timeline = std::move(*extended);
  }
  try {
    const Prediction of_blocks = without_offload(more, nullptr);
    on_line.seconds = of_blocks.seconds;
    on_line.idles = of_blocks.idles;
    on_line.waits = of_blocks.waits;
    on_line.computes = of_blocks.computes;
    on_line.of_products = of_blocks.of_products;
  } catch (const InternalError&) {
    // Blocks of two ranks do not fit together: so few micro-batches do not show how more follow each other.
  }
  return on_line;
}

Prediction Predictor::estimate(const Recipe& recipe) const {
  const BatchPlan plan = plan_batch(recipe, num_ranks_);
  const auto [low, high] = few_sizes(recipe, plan);
  const bool has_layers = low.layers != high.layers, has_batches = low.micro_batches != high.micro_batches;
  if (!has_layers && !has_batches) return predict(recipe);
  const double of_layers = share(low.layers.front(), high.layers.front(), layers_of_stages(recipe).front());
  Prediction sum;
  for (const bool more_layers : {false, true}) {
    if (more_layers && !has_layers) continue;
    const std::vector<int64_t>& layers = more_layers ? high.layers : low.layers;
    const Prediction one =
        has_batches ? with_micro_batches(recipe, {layers, low.micro_batches}, {layers, high.micro_batches}, plan)
                    : without_offload(rehearse_places(with_sizes(recipe, {layers, low.micro_batches}, plan)), nullptr);
    const double of_layer = more_layers ? of_layers : 1 - of_layers;
    add(sum, one, of_layer);
    add(sum.memory, one.memory, of_layer);
    sum.host_bytes += std::llround(of_layer * static_cast<double>(one.host_bytes));
    sum.fullest_rank = one.fullest_rank;
    sum.peak_event = one.peak_event;
  }
  add_offload(sum, recipe);
  add_rates(sum, recipe);
  return sum;
}

}  // namespace caravan
