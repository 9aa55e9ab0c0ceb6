#include "caravan/plan/sketch.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "caravan/base/divisors.h"
#include "caravan/cost/hardware_costs.h"
#include "caravan/plan/neighbours.h"
#include "caravan/registry/registry.h"
#include "caravan/schedule/pipeline_schedule.h"

namespace caravan {
namespace {

constexpr int64_t kMostMicroBatch = 16;

double d(int64_t number) { return static_cast<double>(number); }

std::vector<std::string> exact_names(std::string_view family) {
  std::vector<std::string> names;
  for (const std::string& name : names_of(family)) {
    if (is_exact(Setting(family, name))) names.push_back(name);
  }
  return names;
}

}  // namespace

Sketcher::Sketcher(const Predictor& predictor, const Recipe& recipe)
    : predictor_(predictor),
      recipe_(recipe),
      num_ranks_(predictor.num_ranks()),
      techniques_(exact_names("data_parallel")),
      schedule_names_(exact_names("pipeline")) {}

const LayerPart* Sketcher::layer_of(const SplitChoice& choice) {
  const auto [found, is_new] = layers_.try_emplace(choice);
  if (is_new) found->second = rehearse_layer(predictor_, recipe_, choice);
  return found->second ? &*found->second : nullptr;
}

const StatePart* Sketcher::states_of(const std::string& technique) {
  const auto [found, is_new] = states_.try_emplace(technique);
  if (is_new) {
    std::optional<StatePart> part = rehearse_states(predictor_, recipe_, technique);
    // Techniques that send and keep the same are counted once.
    if (std::ranges::none_of(states_, [&](const auto& other) { return other.second == part; })) {
      found->second = std::move(part);
    }
  }
  return found->second ? &*found->second : nullptr;
}

PipelineChoice Sketcher::pipeline_of(const LayoutSketch& sketch) const {
  PipelineChoice pipeline = recipe_.pipeline;
  pipeline.degree = sketch.pp;
  pipeline.schedule = Setting("pipeline", sketch.schedule);
  return pipeline;
}

const SchedulePart* Sketcher::schedule_part(const LayoutSketch& sketch, int64_t micro_batches, double forward,
                                            double send) {
  // Tables of nearly equal shares are one.
  const auto rounded = [](double share) { return std::llround(20 * share); };
  const auto [found, is_new] =
      schedules_.try_emplace({sketch.schedule, sketch.pp, micro_batches, rounded(forward), rounded(send)});
  if (is_new) found->second = count_schedule(pipeline_of(sketch), micro_batches, forward, send);
  return found->second ? &*found->second : nullptr;
}

/// Of one data-parallel rank among `ranks`, `stride` apart, whose layer has `times` as many parameters.
double Sketcher::call_seconds(const StatePart::Sent& of_layer, StatePart::Phase phase, double times, int64_t ranks,
                              int64_t stride) {
  if (ranks < 2) return 0;
  double seconds = 0;
  for (size_t verb = 0; verb < kNumVerbs; ++verb) {
    const double of_two = of_layer[phase][verb];
    if (of_two <= 0) continue;
    const double bytes = 2 * of_two * times * d(ranks - 1) / d(ranks);  // of a ring
    const auto [found, is_new] = calls_.try_emplace({static_cast<Verb>(verb), std::llround(bytes), ranks, stride});
    if (is_new) {
      std::vector<int> members;
      for (int64_t rank = 0; rank < ranks; ++rank) members.push_back(static_cast<int>(rank * stride));
      const StepTimeline::Call call{.axis = "dp", .verb = static_cast<Verb>(verb), .what = "", .sent_bytes = bytes};
      found->second = predictor_.costs().seconds(call, members).seconds;
    }
    seconds += found->second;
  }
  return seconds;
}

double Sketcher::message_seconds(const LayoutSketch& sketch) {
  const double width = recipe_.precision.compute == "fp32" ? 4 : 2;
  const double rows = d(sketch.split.micro_batch * recipe_.data.task.sequences()) / d(sketch.split.ep);
  const double bytes = rows * d(recipe_.model.row_length()) / d(sketch.split.cp) * d(recipe_.model.width) * width;
  const int64_t of_place = num_ranks_ / sketch.pp;
  const auto [found, is_new] = calls_.try_emplace({Verb::send, std::llround(bytes), 2, of_place});
  if (is_new) {
    const std::vector<int> both{0, static_cast<int>(of_place)};
    const StepTimeline::Call call{.axis = "pp", .verb = Verb::send, .what = "", .sent_bytes = bytes, .peer = 1};
    found->second = predictor_.costs().seconds(call, both).seconds;
  }
  return found->second;
}

double Sketcher::share_of_split(const SplitChoice& split) {
  SplitChoice whole = split;
  whole.tp = whole.cp = whole.ep = 1;
  const LayerPart* unsplit = layer_of(whole);
  const LayerPart* own = layer_of(split);
  return unsplit == nullptr || own == nullptr ? 1 / d(split.tp) : own->parameters / unsplit->parameters;
}

bool Sketcher::count(LayoutSketch& sketch) {
  const SplitChoice& split = sketch.split;
  const LayerPart* layer = layer_of(split);
  const StatePart* states = layer == nullptr ? nullptr : states_of(sketch.technique);
  if (states == nullptr) return false;
  const double of_split = share_of_split(split);
  const int64_t dp = num_ranks_ / sketch.pp / split.ranks();
  const int64_t micro_batches = recipe_.train.global_batch / dp / split.micro_batch;
  const double layers = std::ceil(d(recipe_.model.layers) / d(sketch.pp));
  const double ends_share = sketch.pp > 1 ? 0.5 : 1;  // embedding and head are on two ranks
  const auto calls = [&](StatePart::Phase phase) {
    return layers * call_seconds(states->sent.layer, phase, of_split, dp, split.ranks()) +
           ends_share * call_seconds(states->sent.ends, phase, of_split, dp, split.ranks());
  };
  const double ends = layer->ends * ends_share;
  const double forward = std::max(layers * layer->forward + ends / 3, calls(StatePart::forward));
  const double computes = layers * layer->backward + ends * 2 / 3;
  const double backward = std::max(computes, calls(StatePart::backward));
  const double first = std::max(0.0, calls(StatePart::first_forward) - forward);
  const double last = std::max(0.0, calls(StatePart::last_backward) - backward);
  const SchedulePart one{.total = d(micro_batches), .in_flight = 1};
  const SchedulePart* schedule = &one;
  const double of_both = forward + backward;
  if (sketch.pp > 1) {
    schedule = schedule_part(sketch, micro_batches, forward / of_both, message_seconds(sketch) / of_both);
    if (schedule == nullptr) return false;
  }
  const auto shared = [&](const LayersAndEnds<SharedNumber>& number) {
    return of_split * (layers * number.layer.of(d(dp)) + ends_share * number.ends.of(d(dp)));
  };
  sketch.seconds = schedule->total * of_both + first + last + calls(StatePart::update) + shared(states->seconds);
  sketch.bytes = shared(states->bytes) + schedule->in_flight * layers * layer->kept + layer->working;
  return true;
}

/// All micro-batches, kinds of recomputation, techniques and schedules with the degrees of `sketch`.
void Sketcher::add_all(LayoutSketch sketch, std::vector<LayoutSketch>& to, std::clock_t end) {
  SplitChoice& split = sketch.split;
  const int64_t dp = num_ranks_ / sketch.pp / split.ranks();
  if (recipe_.train.global_batch % dp != 0) return;
  const int64_t rows = recipe_.train.global_batch / dp, least = recipe_.tensor_parallel.parts().rows * split.ep;
  if (rows % least != 0) return;
  const size_t num_techniques = dp > 1 ? techniques_.size() : 1;
  const std::vector<std::string> schedules = sketch.pp > 1 ? schedule_names_ : std::vector<std::string>{""};
  for (const int64_t times : divisors(rows / least, 1, kMostMicroBatch)) {
    split.micro_batch = times * least;
    for (const char* recompute : {"none", "full"}) {
      split.recompute = recompute;
      for (size_t i = 0; i < num_techniques; ++i) {
        sketch.technique = techniques_[i];
        for (const std::string& schedule : schedules) {
          sketch.schedule = schedule;
          if (std::clock() > end) {
            is_complete_ = false;
            return;
          }
          if (count(sketch)) to.push_back(sketch);
        }
      }
    }
  }
}

std::vector<LayoutSketch> Sketcher::all(double room_bytes, std::clock_t end) {
  const int64_t per_host = std::max<int64_t>(1, predictor_.hardware().hosts.front().devices);
  std::vector<LayoutSketch> found;
  // Sequences are split for lack of memory or of sequences. If splits no longer help, finer ones do not either.
  double best = 0;
  for (const int64_t cp : divisors(num_ranks_, 1, recipe_.model.context)) {
    const size_t num_before = found.size();
    for (const int64_t ep : recipe_.model.moe.is_used() ? divisors(num_ranks_ / cp) : std::vector<int64_t>{1}) {
      for (const int64_t tp : divisors(num_ranks_ / cp / ep, 1, per_host)) {
        for (const int64_t pp : divisors(num_ranks_ / cp / ep / tp, 1, recipe_.model.layers)) {
          add_all({.split = {.tp = tp, .cp = cp, .ep = ep}, .pp = pp}, found, end);
        }
      }
    }
    double own = 0;
    for (size_t i = num_before; i < found.size(); ++i) {
      const bool fits = room_bytes <= 0 || found[i].bytes <= room_bytes;
      if (fits && (own == 0 || found[i].seconds < own)) own = found[i].seconds;
    }
    if (best > 0 && own > best) break;
    if (own > 0) best = own;
  }
  return found;
}

std::optional<UnitProblem> Sketcher::units_of(const LayoutSketch& sketch, double room_share) {
  SplitChoice kept = sketch.split, again = sketch.split;
  kept.recompute = "none";
  again.recompute = "full";
  const LayerPart* const parts[] = {layer_of(kept), layer_of(again)};
  const StatePart* states = states_of(sketch.technique);
  if (parts[0] == nullptr || parts[1] == nullptr || states == nullptr) return std::nullopt;
  const int64_t dp = num_ranks_ / sketch.pp / kept.ranks(), of_place = num_ranks_ / sketch.pp;
  UnitProblem problem{.micro_batches = recipe_.train.global_batch / dp / kept.micro_batch};
  std::vector<double> in_flight{1};
  if (sketch.pp > 1) {
    const PipelineChoice pipeline = pipeline_of(sketch);
    if (pipeline.chunks() != 1) return std::nullopt;
    const int64_t few = std::min(problem.micro_batches, 3 * sketch.pp);
    in_flight.clear();
    for (const HeldActivations& held : held_activations(pipeline_order(pipeline, static_cast<int>(few)))) {
      in_flight.push_back(d(held.activations));
    }
    problem.message_seconds = message_seconds(sketch);
  }
  const std::string& dtype = recipe_.precision.compute;
  const auto rate_of = [&](int64_t place) {
    const Hardware& hardware = predictor_.hardware();
    const int rank = slowest_rank(hardware, static_cast<int>(place * of_place), static_cast<int>(of_place), dtype);
    return HardwareCosts::rate_of(hardware.device_of(rank), dtype).flops;
  };
  for (int64_t place = 0; place < sketch.pp; ++place) {
    const double working = std::max(parts[0]->working, parts[1]->working);
    const double own = room_share * d(predictor_.room_bytes(recipe_, static_cast<int>(place), sketch.pp));
    const double room = own > 0 ? std::max(1.0, own - working) : 0;
    problem.stages.push_back({rate_of(0) / rate_of(place), in_flight[static_cast<size_t>(place)], room});
  }
  const double of_split = share_of_split(kept);
  const double ends_share = sketch.pp > 1 ? 0.5 : 1;
  std::vector<UnitWay> ways;
  for (const LayerPart* part : parts) {
    ways.push_back({part->forward + part->backward, part->kept, of_split * states->bytes.layer.of(d(dp))});
  }
  problem.units.assign(static_cast<size_t>(recipe_.model.layers), ways);
  for (UnitWay& way : problem.units.back()) way.seconds += parts[0]->ends;
  for (auto* end : {&problem.units.front(), &problem.units.back()}) {
    for (UnitWay& way : *end) way.state_bytes += ends_share * of_split * states->bytes.ends.of(d(dp));
    if (sketch.pp == 1) break;  // one rank has both ends
  }
  return problem;
}

std::optional<Recipe> Sketcher::recipe_of(const LayoutSketch& sketch) const {
  const SplitChoice& split = sketch.split;
  const int64_t dp = num_ranks_ / sketch.pp / split.ranks();
  std::vector<std::pair<std::string, RecipeValue>> keys{{"mesh.tp", split.tp},
                                                        {"mesh.cp", split.cp},
                                                        {"mesh.ep", split.ep},
                                                        {"mesh.pp", sketch.pp},
                                                        {"mesh.dp", dp},
                                                        {"data_parallel.technique", sketch.technique},
                                                        {"memory.recompute", split.recompute}};
  if (sketch.pp > 1) {
    keys.emplace_back("pipeline.schedule", sketch.schedule);
    keys.emplace_back("pipeline.micro_batches", recipe_.train.global_batch / dp / split.micro_batch);
    keys.emplace_back("train.micro_batch", std::string("auto"));
    if (!recipe_.pipeline.layers().empty()) keys.emplace_back("pipeline.cut", std::string("flops"));  // of other stages
  } else {
    keys.emplace_back("train.micro_batch", split.micro_batch);
  }
  return changed_recipe(recipe_, keys, static_cast<int>(num_ranks_));
}

}  // namespace caravan
