#include "caravan/plan/sketch_parts.h"

#include <algorithm>
#include <functional>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "caravan/plan/if_possible.h"
#include "caravan/plan/neighbours.h"
#include "caravan/registry/registry.h"
#include "caravan/schedule/pipeline.h"
#include "caravan/schedule/pipeline_schedule.h"

namespace caravan {
namespace {

using Keys = std::vector<std::pair<std::string, RecipeValue>>;

// Layers of the smallest models whose middle layers are like those of large ones: of passes, and of parameters that are
// gathered ahead.
constexpr int64_t kFewLayers = 3, kFewUnits = 4;

bool has_part(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

/// The first of `ranks` ranks. Nothing if the recipe with these keys is not legal there, or cannot be rehearsed.
std::optional<Rehearsal> first_of_ranks(const Predictor& predictor, const Recipe& recipe, const Keys& keys,
                                        int64_t ranks) {
  const auto legal = changed_recipe(recipe, keys, static_cast<int>(ranks));
  if (!legal) return std::nullopt;
  return if_possible([&] { return std::move(predictor.rehearse_places(*legal, static_cast<int>(ranks)).front()); });
}

/// Seconds of the spans whose event `is_in` takes. A wait belongs to the event before it.
double seconds_in(const SimulatedStep& step, const std::function<bool(const std::string& event)>& is_in) {
  double seconds = 0;
  bool counts = false;
  for (const SimulatedStep::Span& span : step.spans) {
    if (span.row == "compute") counts = is_in(span.what);
    if (counts && (span.row == "compute" || span.row == "wait")) seconds += span.end - span.begin;
  }
  return seconds;
}

Keys of_one_replica(int64_t layers, int64_t micro_batch, int64_t micro_batches) {
  return {{"model.layers", layers},
          {"mesh.pp", int64_t{1}},
          {"offload.parameters", std::string("none")},
          {"offload.gradients", std::string("none")},
          {"offload.optimizer", std::string("none")},
          {"train.micro_batch", micro_batch},
          {"train.global_batch", micro_batch * micro_batches}};
}

/// Of kFewUnits layers and of one more.
LayersAndEnds<double> line_of(double few, double more) {
  return {more - few, few - static_cast<double>(kFewUnits) * (more - few)};
}

/// Of two and four ranks.
SharedNumber shared_of(double of_two, double of_four) {
  const double shards = 4 * (of_two - of_four);
  return {of_two - shards / 2, shards};
}

LayersAndEnds<SharedNumber> shared_of(const LayersAndEnds<double>& of_two, const LayersAndEnds<double>& of_four) {
  return {shared_of(of_two.layer, of_four.layer), shared_of(of_two.ends, of_four.ends)};
}

/// Of two micro-batches.
StatePart::Phase phase_of(const std::string& event) {
  const bool is_first = event.ends_with("of micro-batch 0"), is_forward = event.starts_with("forward");
  if (is_first) return is_forward ? StatePart::first_forward : StatePart::backward;
  if (!has_part(event, "of micro-batch")) return StatePart::update;
  return is_forward ? StatePart::forward : StatePart::last_backward;
}

StatePart::Sent sent_in(const StepTimeline& timeline) {
  StatePart::Sent sent{};
  for (const StepTimeline::Moment& moment : timeline.moments) {
    if (moment.kind != StepTimeline::Moment::Kind::begin) continue;
    const std::string& event = timeline.events[static_cast<size_t>(moment.event)];
    const StepTimeline::Call& call = timeline.calls[static_cast<size_t>(moment.index)];
    if (call.axis == "world") continue;
    sent[phase_of(event)][static_cast<size_t>(call.verb)] += call.sent_bytes;
  }
  return sent;
}

/// The most that is not activations while micro-batches are computed.
double bytes_of_states(const Rehearsal& one) {
  int64_t most = 0;
  for (const RehearsedEvent& event : one.events) {
    if (!has_part(event.what, "of micro-batch")) continue;
    most = std::max(most, event.peak.total() - event.peak[MemoryKind::other]);
  }
  return static_cast<double>(most);
}

/// Of the optimizer's kernels.
double update_seconds(const StepTimeline& timeline, const StepCosts& costs) {
  double seconds = 0;
  for (const StepTimeline::Moment& moment : timeline.moments) {
    const bool is_update = timeline.events[static_cast<size_t>(moment.event)].starts_with("optimizer");
    if (moment.kind != StepTimeline::Moment::Kind::kernel || !is_update) continue;
    seconds += costs.seconds(timeline.kernels[static_cast<size_t>(moment.index)], 0);
  }
  return seconds;
}

}  // namespace

std::optional<LayerPart> rehearse_layer(const Predictor& predictor, const Recipe& recipe, const SplitChoice& choice) {
  Keys keys = of_one_replica(kFewLayers, choice.micro_batch, 1);
  const Keys own{{"mesh.dp", int64_t{1}},
                 {"mesh.tp", choice.tp},
                 {"mesh.cp", choice.cp},
                 {"mesh.ep", choice.ep},
                 {"data_parallel.technique", first_of("data_parallel").name},
                 {"data_parallel.hook", first_of("hook").name},
                 {"memory.recompute", choice.recompute}};
  keys.insert(keys.end(), own.begin(), own.end());
  const auto one = first_of_ranks(predictor, recipe, keys, choice.ranks());
  if (!one) return std::nullopt;
  const RankTimeline timeline{one->rank, &one->timeline, &one->ranks_of_axis};
  const SimulatedStep step = simulate({&timeline, 1}, predictor.costs(), /*keep_spans=*/true);
  const std::string middle = "blocks.1 ";
  LayerPart part;
  part.forward = seconds_in(
      step, [&](const std::string& event) { return event.starts_with("forward") && has_part(event, middle); });
  part.backward = seconds_in(
      step, [&](const std::string& event) { return !event.starts_with("forward") && has_part(event, middle); });
  part.ends = seconds_in(
      step, [&](const std::string& event) { return has_part(event, "of micro-batch") && !has_part(event, "blocks."); });
  MemoryBytes before{}, after{};
  for (const RehearsedEvent& event : one->events) {
    if (event.what.starts_with("forward blocks.0 ")) before = event.after;
    if (event.what.starts_with("forward blocks.1 ")) after = event.after;
  }
  part.kept = std::max<double>(0, static_cast<double>(after[MemoryKind::other] - before[MemoryKind::other]));
  part.parameters = static_cast<double>(one->between_steps[MemoryKind::parameters]);
  const auto peak = static_cast<double>(one->peak[MemoryKind::other]);
  part.working = std::max(0.0, peak - static_cast<double>(kFewLayers) * part.kept);
  return part;
}

std::optional<StatePart> rehearse_states(const Predictor& predictor, const Recipe& recipe,
                                         const std::string& technique) {
  struct Numbers {
    StatePart::Sent sent{};
    double bytes = 0, seconds = 0;
  };
  const auto numbers = [&](int64_t ranks, int64_t layers) -> std::optional<Numbers> {
    Keys keys = of_one_replica(layers, 1, 2 * ranks);
    const Keys own{{"mesh.dp", ranks},
                   {"mesh.tp", int64_t{1}},
                   {"mesh.cp", int64_t{1}},
                   {"mesh.ep", int64_t{1}},
                   {"data_parallel.technique", technique},
                   {"memory.recompute", first_of("recompute").name}};
    keys.insert(keys.end(), own.begin(), own.end());
    Recipe small = recipe;
    small.model.context = std::min<int64_t>(small.model.context, 64);  // the size of activations does not matter
    const auto one = first_of_ranks(predictor, small, keys, ranks);
    if (!one) return std::nullopt;
    return Numbers{sent_in(one->timeline), bytes_of_states(*one), update_seconds(one->timeline, predictor.costs())};
  };
  const auto few_two = numbers(2, kFewUnits), more_two = numbers(2, kFewUnits + 1);
  const auto few_four = numbers(4, kFewUnits), more_four = numbers(4, kFewUnits + 1);
  if (!few_two || !more_two || !few_four || !more_four) return std::nullopt;
  StatePart part;
  for (size_t phase = 0; phase < StatePart::kNumPhases; ++phase) {
    for (size_t verb = 0; verb < kNumVerbs; ++verb) {
      const auto line = line_of(few_two->sent[phase][verb], more_two->sent[phase][verb]);
      part.sent.layer[phase][verb] = std::max(0.0, line.layer);
      part.sent.ends[phase][verb] = std::max(0.0, line.ends);
    }
  }
  part.bytes = shared_of(line_of(few_two->bytes, more_two->bytes), line_of(few_four->bytes, more_four->bytes));
  part.seconds =
      shared_of(line_of(few_two->seconds, more_two->seconds), line_of(few_four->seconds, more_four->seconds));
  return part;
}

std::optional<SchedulePart> count_schedule(const PipelineChoice& pipeline, int64_t micro_batches, double forward,
                                           double send) {
  const auto chunks = static_cast<double>(pipeline.chunks());
  const double rest = 1 - forward;
  const StageCost cost{
      .forward = forward / chunks, .backward = rest / 2 / chunks, .weight = rest / 2 / chunks, .send = send / chunks};
  const auto total_of = [&](int64_t count) {
    const PipelineOrder order = pipeline_order(pipeline, static_cast<int>(count));
    const std::vector<StageCost> stages(static_cast<size_t>(order.num_stages()), cost);
    return std::pair(simulate(order, stages).total, held_activations(order));
  };
  return if_possible([&] {
    const int64_t few = 2 * pipeline.degree;
    const bool is_long = micro_batches > few + pipeline.degree;
    const auto [total, held] = total_of(is_long ? few : micro_batches);
    SchedulePart part{.total = total};
    if (is_long) {
      const double of_round = total_of(few + pipeline.degree).first - total;
      part.total += of_round * static_cast<double>(micro_batches - few) / static_cast<double>(pipeline.degree);
    }
    for (const HeldActivations& one : held) {
      part.in_flight = std::max(part.in_flight, static_cast<double>(one.activations) / chunks);
    }
    return part;
  });
}

}  // namespace caravan
