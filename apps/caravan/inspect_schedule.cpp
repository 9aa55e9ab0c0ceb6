#include "apps/caravan/inspect_schedule.h"

#include <algorithm>
#include <cstdio>
#include <sys/ioctl.h>
#include <unistd.h>

#include <fmt/format.h>

#include "apps/caravan/check_run.h"
#include "apps/caravan/commands.h"
#include "apps/caravan/vocabulary.h"
#include "caravan/base/error.h"
#include "caravan/base/file.h"
#include "caravan/base/text.h"
#include "caravan/plan/draw_pipeline.h"
#include "caravan/plan/stages.h"
#include "caravan/train/micro_batch.h"

namespace caravan::app {
namespace {

int text_width() {
  winsize size{};
  const bool is_terminal = ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return is_terminal ? size.ws_col : 160;
}

/// The sum of what the units of each stage cost: forward, the gradients of inputs and those of weights each a third.
std::vector<StageCost> costs_of(const std::vector<int>& stages, const std::vector<double>& unit_costs) {
  std::vector<StageCost> costs(static_cast<size_t>(stages.back()) + 1, {0, 0, 0, 0, 0});
  for (size_t unit = 0; unit < stages.size(); ++unit) {
    StageCost& cost = costs[static_cast<size_t>(stages[unit])];
    for (double* part : {&cost.forward, &cost.backward, &cost.weight, &cost.recompute}) *part += unit_costs[unit] / 3;
  }
  return costs;
}

std::string layers_text(const ModelPart& part) {
  std::string text = std::to_string(part.layers);
  if (part.has_embedding) text = "embedding + " + text;
  if (part.has_head) text += " + head";
  return text;
}

void print_ranks(const PlannedSchedule& plan) {
  const std::vector<HeldActivations> held = held_activations(plan.order);
  fmt::print("\n{:>5}  {:>22}  {:>14}  {:>12}  {:>12}  {:>12}  {:>8}  {:>12}\n", "rank", "layers", "held at once",
             "activations", "parameters", "in all", "bubble", "sent a step");
  for (size_t rank = 0; rank < plan.ranks.size(); ++rank) {
    const MemoryShape& shape = plan.ranks[rank];
    const double sent = static_cast<double>(plan.timeline.ranks[rank].num_sent) / plan.steps;
    std::string count = std::to_string(held[rank].activations);
    if (held[rank].inputs > 0) count += fmt::format(" + {} inputs", held[rank].inputs);
    const auto bytes = [](double number) { return format_bytes(static_cast<int64_t>(number)); };
    fmt::print("{:>5}  {:>22}  {:>14}  {:>12}  {:>12}  {:>12}  {:>7.1f}%  {:>12}\n", rank, layers_text(shape.part),
               count, bytes(kept_activation_bytes(shape)), bytes(state_of(shape).parameters * 4),
               bytes(peak_bytes(shape)), 100 * plan.timeline.bubble(rank), bytes(sent * full_activation_bytes(shape)));
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

PlannedSchedule plan_schedule(const Recipe& recipe, int num_ranks) {
  const MemoryShape shape = plan_memory(recipe, recipe.model.vocabulary, num_ranks, /*limit_bytes=*/0).shape;
  PlannedSchedule plan;
  plan.micro_batches = static_cast<int>(shape.rows / shape.sequences);
  const int64_t end = std::max<int64_t>(recipe.train.steps, 1);
  if (recipe.pipeline.has_windows()) {
    plan.steps = static_cast<int>(std::min(recipe.pipeline.schedule.whole("drain"), next_due(recipe, 0, end)));
  }
  const std::vector<double> unit_costs = unit_flops(recipe.model);
  plan.costs = costs_of(stage_of_units(recipe.pipeline, recipe.model, unit_costs), unit_costs);
  plan.order = pipeline_order(recipe.pipeline, plan.steps * plan.micro_batches, shape.recomputes_stages);
  plan.timeline = simulate(plan.order, plan.costs);
  plan.ranks = shapes_of_ranks(shape);
  return plan;
}

int inspect_schedule(const InspectArguments& arguments) {
  auto [recipe, ranks] = check_run(arguments.recipe, arguments.overrides, arguments.ranks);
  const PipelineChoice& choice = recipe.pipeline;
  if (!choice.is_used()) {
    throw UsageError({"inspect", "--schedule", "mesh.pp is 1: there is no pipeline", recipe.where("mesh.pp"),
                      "give --set mesh.pp=2"});
  }
  recipe.model.vocabulary = vocabulary_of(recipe).size;
  const PlannedSchedule plan = plan_schedule(recipe, ranks.num_ranks);
  std::string title = fmt::format("{}, {} ranks, {} stages, {} micro-batch{} of {} sequences", choice.name(),
                                  choice.degree, plan.order.num_stages(), plan.micro_batches,
                                  plan.micro_batches == 1 ? "" : "es", plan.ranks.front().sequences);
  Timeline drawn = plan.timeline;
  // Of a window only as much as fills the pipeline twice: more would be too small to read.
  const auto degree = static_cast<int>(choice.degree);
  if (const int steps = (2 * degree + plan.micro_batches - 1) / plan.micro_batches; steps < plan.steps) {
    drawn =
        simulate(pipeline_order(choice, steps * plan.micro_batches, plan.ranks.front().recomputes_stages), plan.costs);
    title += fmt::format(", a window of {} steps (the numbers: of {})", steps, plan.steps);
  }
  fmt::print("{}\n\n{}", title, to_text(drawn, text_width()));
  fmt::print(
      "F forward, C recompute, B backward{}, W weight gradients, each until the next letter, . bubble; costs are "
      "FLOPs\n",
      defers_weights(plan.order) ? "" : " with weight gradients");
  print_ranks(plan);
  if (recipe.model.tie_embeddings) fmt::print("beside it, the last stage shares the tied embedding with the first\n");
  print_bubble(plan);
  if (!arguments.svg.empty()) {
    write_file_durably(arguments.svg, to_svg(drawn, plan.order.rank_of_stage, title), "inspect");
    fmt::print("drawn in {}\n", arguments.svg);
  }
  return 0;
}

}  // namespace caravan::app
