#include "caravan/plan/sketch.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "caravan/base/divisors.h"
#include "caravan/plan/neighbours.h"
#include "caravan/registry/registry.h"

namespace caravan {
namespace {

constexpr int64_t kMostMicroBatch = 16;

double d(int64_t number) { return static_cast<double>(number); }

/// Whether the step of this choice is that of one process, and a rehearsal knows it.
bool is_exact_choice(std::string_view family, const std::string& name) {
  const Setting setting(family, name);
  return setting.has(Trait::whole_gradient) && setting.has(Trait::rehearses);
}

std::vector<std::string> exact_names(std::string_view family) {
  std::vector<std::string> names;
  for (const std::string& name : names_of(family)) {
    if (is_exact_choice(family, name)) names.push_back(name);
  }
  return names;
}

}  // namespace

Sketcher::Sketcher(const Predictor& predictor, const Recipe& recipe)
    : predictor_(predictor), recipe_(recipe), num_ranks_(predictor.num_ranks()) {}

/// Of larger micro-batches by two smaller ones: passes are linear in rows.
const LayerPart* Sketcher::layer_of(const SplitChoice& choice) {
  const auto found = layers_.find(choice);
  if (found != layers_.end()) return found->second ? &*found->second : nullptr;
  std::optional<LayerPart>& part = layers_[choice];
  const int64_t least = choice.ep * row_parts(recipe_);
  if (choice.micro_batch <= 2 * least) {
    part = rehearse_layer(predictor_, recipe_, choice);
    return part ? &*part : nullptr;
  }
  SplitChoice one = choice, two = choice;
  one.micro_batch = least;
  two.micro_batch = 2 * least;
  const LayerPart* small = layer_of(one);
  const LayerPart* large = small == nullptr ? nullptr : layer_of(two);
  if (large == nullptr) return nullptr;
  const double times = d(choice.micro_batch) / d(least) - 1;
  const auto extended = [&](double LayerPart::*number) {
    return small->*number + times * (large->*number - small->*number);
  };
  part = LayerPart{.forward = extended(&LayerPart::forward),
                   .backward = extended(&LayerPart::backward),
                   .ends = extended(&LayerPart::ends),
                   .kept = extended(&LayerPart::kept),
                   .working = extended(&LayerPart::working),
                   .parameters = small->parameters};
  return &*part;
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

const SchedulePart* Sketcher::schedule_part(const LayoutSketch& sketch, int64_t micro_batches, double forward,
                                            double send) {
  // Tables of nearly equal shares are one.
  const auto tenth_of = [](double share) { return std::llround(20 * share); };
  const auto [found, is_new] =
      schedules_.try_emplace({sketch.schedule, sketch.pp, micro_batches, tenth_of(forward), tenth_of(send)});
  if (is_new) {
    PipelineChoice pipeline = recipe_.pipeline;
    pipeline.degree = sketch.pp;
    pipeline.schedule = Setting("pipeline", sketch.schedule);
    found->second = count_schedule(pipeline, false, micro_batches, forward, send);
  }
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
  const double rows = d(sketch.split.micro_batch) / d(sketch.split.ep);
  const double bytes = rows * d(recipe_.model.context) / d(sketch.split.cp) * d(recipe_.model.width) * width;
  const int64_t of_place = num_ranks_ / sketch.pp;
  const auto [found, is_new] = calls_.try_emplace({Verb::send, std::llround(bytes), 2, of_place});
  if (is_new) {
    const std::vector<int> both{0, static_cast<int>(of_place)};
    const StepTimeline::Call call{.axis = "pp", .verb = Verb::send, .what = "", .sent_bytes = bytes, .peer = 1};
    found->second = predictor_.costs().seconds(call, both).seconds;
  }
  return found->second;
}

bool Sketcher::count(LayoutSketch& sketch) {
  const SplitChoice& split = sketch.split;
  const LayerPart* layer = layer_of(split);
  const StatePart* states = layer == nullptr ? nullptr : states_of(sketch.technique);
  if (states == nullptr) return false;
  SplitChoice whole = split;
  whole.tp = whole.cp = whole.ep = 1;
  const LayerPart* unsplit = layer_of(whole);
  const double of_split = unsplit == nullptr ? 1 / d(split.tp) : layer->parameters / unsplit->parameters;
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

void Sketcher::add(LayoutSketch sketch, std::vector<LayoutSketch>& to, std::clock_t end) {
  if (std::clock() > end) {
    is_complete_ = false;
    return;
  }
  if (count(sketch)) to.push_back(std::move(sketch));
}

std::vector<LayoutSketch> Sketcher::all(double room_bytes, std::clock_t end) {
  const std::vector<std::string> techniques = exact_names("data_parallel"), schedules = exact_names("pipeline");
  const int64_t per_host = std::max<int64_t>(1, predictor_.hardware().hosts.front().devices);
  const int64_t batch = recipe_.train.global_batch;
  std::vector<LayoutSketch> found;
  // Sequences are split for lack of memory or of sequences. If splits no longer help, finer ones do not either.
  double best = 0;
  for (const int64_t cp : divisors(num_ranks_, 1, recipe_.model.context)) {
    const size_t num_before = found.size();
    for (const int64_t ep : recipe_.model.moe.is_used() ? divisors(num_ranks_ / cp) : std::vector<int64_t>{1}) {
      for (const int64_t tp : divisors(num_ranks_ / cp / ep, 1, per_host)) {
        for (const int64_t pp : divisors(num_ranks_ / cp / ep / tp, 1, recipe_.model.layers)) {
          const int64_t dp = num_ranks_ / cp / ep / tp / pp;
          if (batch % dp != 0) continue;
          const int64_t least = row_parts(recipe_) * ep;
          for (int64_t rows = least; rows <= std::min(kMostMicroBatch * least, batch / dp); rows *= 2) {
            if (batch / dp % rows != 0) break;
            for (const char* recompute : {"none", "full"}) {
              for (const std::string& technique : dp > 1 ? techniques : std::vector{techniques.front()}) {
                LayoutSketch sketch{.split = {tp, cp, ep, rows, recompute}, .pp = pp, .technique = technique};
                if (pp == 1) add(sketch, found, end);
                for (const std::string& schedule : pp > 1 ? schedules : std::vector<std::string>{}) {
                  sketch.schedule = schedule;
                  add(sketch, found, end);
                }
              }
            }
          }
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
  } else {
    keys.emplace_back("train.micro_batch", split.micro_batch);
  }
  return changed_recipe(recipe_, keys, static_cast<int>(num_ranks_));
}

}  // namespace caravan
