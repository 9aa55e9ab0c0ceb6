#include <algorithm>
#include <cstdio>
#include <sys/ioctl.h>
#include <unistd.h>

#include <fmt/format.h>

#include "apps/caravan/commands.h"
#include "apps/caravan/inspect/planned_schedule.h"
#include "apps/caravan/launch/check_run.h"
#include "apps/caravan/options/vocabulary.h"
#include "caravan/base/error.h"
#include "caravan/base/runtime.h"
#include "caravan/base/system/file.h"
#include "caravan/base/text.h"
#include "caravan/registry/registry.h"
#include "caravan/schedule/draw_pipeline.h"
#include "caravan/train/model/rehearse.h"

namespace caravan::app {
namespace {

int text_width() {
  winsize size{};
  const bool is_terminal = ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return is_terminal ? size.ws_col : 160;
}

/// "embedding + 3": the units of the stages of one rank.
std::string layers_text(const PlannedSchedule& plan, size_t rank) {
  const auto is_here = [&](int stage) {
    return plan.order.rank_of_stage[static_cast<size_t>(stage)] == static_cast<int>(rank);
  };
  const auto layers = std::span(plan.stage_of_unit).subspan(1, plan.stage_of_unit.size() - 2);
  std::string text = std::to_string(std::ranges::count_if(layers, is_here));
  if (is_here(plan.stage_of_unit.front())) text = "embedding + " + text;
  if (is_here(plan.stage_of_unit.back())) text += " + head";
  return text;
}

/// Memory and traffic of the first rank of each position in the pipeline, by rehearsals.
void print_ranks(const PlannedSchedule& plan, const Recipe& recipe, int num_ranks) {
  const std::vector<HeldActivations> held = held_activations(plan.order);
  const auto numbers = std::make_shared<RecordedNumbers>();
  const int of_place = num_ranks / static_cast<int>(plan.timeline.ranks.size());
  fmt::print("\n{:>5}  {:>22}  {:>14}  {:>12}  {:>12}  {:>12}  {:>8}  {:>12}\n", "rank", "layers", "held at once",
             "activations", "parameters", "in all", "bubble", "sent a step");
  for (size_t rank = 0; rank < plan.timeline.ranks.size(); ++rank) {
    std::string count = std::to_string(held[rank].activations);
    if (held[rank].inputs > 0) count += fmt::format(" + {} inputs", held[rank].inputs);
    const Rehearsal rehearsed =
        rehearse(recipe, recipe.model.vocabulary, num_ranks, static_cast<int>(rank) * of_place, 0, numbers);
    fmt::print("{:>5}  {:>22}  {:>14}  {:>12}  {:>12}  {:>12}  {:>7.1f}%  {:>12}\n", rank, layers_text(plan, rank),
               count, format_bytes(rehearsed.peak[MemoryKind::other]),
               format_bytes(rehearsed.between_steps[MemoryKind::parameters]), format_bytes(rehearsed.peak.total()),
               100 * plan.timeline.bubble(rank), format_bytes(static_cast<int64_t>(rehearsed.bytes_sent("pp"))));
  }
}

void print_bubble(const PlannedSchedule& plan) {
  double inside = 0;
  for (const Timeline::Rank& rank : plan.timeline.ranks) {
    inside += rank.idle_inside() / plan.timeline.total / static_cast<double>(plan.timeline.ranks.size());
  }
  fmt::print(
      "\nbubble of the {}, mean of the ranks  {:.1f} %; between the first and the last pass of a rank  {:.1f} %\n",
      plan.steps > 1 ? "window" : "step", 100 * plan.timeline.bubble(), 100 * inside);
}

bool defers_weights(const PipelineOrder& order) {
  return std::ranges::any_of(order.ranks.front(), [](const Pass& pass) { return pass.kind == Pass::Kind::weight; });
}

}  // namespace

int inspect_schedule(const InspectArguments& arguments) {
  auto [recipe, ranks] = check_run(arguments.recipe, arguments.overrides, arguments.ranks);
  const PipelineChoice& choice = recipe.pipeline;
  if (!choice.is_used()) {
    throw UsageError({"inspect", "--schedule", "mesh.pp is 1: there is no pipeline", recipe.where("mesh.pp"),
                      "give --set mesh.pp=2"});
  }
  const Runtime runtime({.intra_op_threads = threads_per_rank(recipe, planned_ranks_per_host(ranks.num_ranks))});
  recipe.model.vocabulary = vocabulary_of(recipe).size;
  const PlannedSchedule plan = plan_schedule(recipe, ranks.num_ranks);
  const auto micro_batches = static_cast<int>(plan.batch.accumulation);
  std::string title =
      fmt::format("{}, {} ranks, {} stages, {} micro-batch{} of {} sequences", choice.name(), choice.degree,
                  plan.order.num_stages(), micro_batches, micro_batches == 1 ? "" : "es", plan.batch.micro_batch);
  Timeline drawn = plan.timeline;
  // Draws only enough of a window to fill the pipeline twice: more would be too small to read.
  const auto degree = static_cast<int>(choice.degree);
  if (const int steps = (2 * degree + micro_batches - 1) / micro_batches; steps < plan.steps) {
    const bool recomputes = recipe.memory.recompute.entry().repeats_stages;
    drawn = simulate(pipeline_order(choice, steps * micro_batches, recomputes), plan.costs);
    title += fmt::format(", a window of {} steps (the numbers: of {})", steps, plan.steps);
  }
  fmt::print("{}\n\n{}", title, to_text(drawn, text_width()));
  fmt::print(
      "F forward, C recompute, B backward{}, W weight gradients, each until the next letter, . bubble; costs are "
      "FLOPs\n",
      defers_weights(plan.order) ? "" : " with weight gradients");
  print_ranks(plan, recipe, ranks.num_ranks);
  if (recipe.model.ties_head()) fmt::print("in addition, the last stage shares the tied embedding with the first\n");
  print_bubble(plan);
  if (!arguments.svg.empty()) {
    write_file_durably(arguments.svg, to_svg(drawn, plan.order.rank_of_stage, title), "inspect");
    fmt::print("drawn in {}\n", arguments.svg);
  }
  return 0;
}

}  // namespace caravan::app
