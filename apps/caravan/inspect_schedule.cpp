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

void print_ranks(const std::vector<MemoryShape>& shapes, const PipelineOrder& order, const Timeline& timeline) {
  const std::vector<HeldActivations> held = held_activations(order);
  fmt::print("\n{:>5}  {:>22}  {:>14}  {:>12}  {:>12}  {:>12}  {:>8}  {:>12}\n", "rank", "layers", "held at once",
             "activations", "parameters", "in all", "bubble", "sent a step");
  for (size_t rank = 0; rank < shapes.size(); ++rank) {
    const MemoryShape& shape = shapes[rank];
    const auto sent = static_cast<double>(timeline.ranks[rank].num_sent) * full_activation_bytes(shape);
    std::string count = std::to_string(held[rank].activations);
    if (held[rank].inputs > 0) count += fmt::format(" + {} inputs", held[rank].inputs);
    const auto bytes = [](double number) { return format_bytes(static_cast<int64_t>(number)); };
    fmt::print("{:>5}  {:>22}  {:>14}  {:>12}  {:>12}  {:>12}  {:>7.1f}%  {:>12}\n", rank, layers_text(shape.part),
               count, bytes(kept_activation_bytes(shape)), bytes(state_of(shape).parameters * 4),
               bytes(peak_bytes(shape)), 100 * timeline.bubble(rank), bytes(sent));
  }
}

}  // namespace

int inspect_schedule(const InspectArguments& arguments) {
  auto [recipe, ranks] = check_run(arguments.recipe, arguments.overrides, arguments.ranks);
  if (!recipe.pipeline.is_used()) {
    throw UsageError({"inspect", "--schedule", "mesh.pp is 1: there is no pipeline", recipe.where("mesh.pp"),
                      "give --set mesh.pp=2"});
  }
  recipe.model.vocabulary = vocabulary_of(recipe).size;
  const MemoryPlan memory = plan_memory(recipe, recipe.model.vocabulary, ranks.num_ranks, /*limit_bytes=*/0);
  const auto micro_batches = static_cast<int>(memory.shape.rows / memory.shape.sequences);
  const std::vector<double> unit_costs = unit_flops(recipe.model);
  const std::vector<int> stages = stage_of_units(recipe.pipeline, recipe.model, unit_costs);
  PipelineOrder order = pipeline_order(recipe.pipeline, micro_batches);
  if (memory.shape.recomputes_stages) order = with_recompute(std::move(order));
  const std::vector<StageCost> costs = costs_of(stages, unit_costs);
  const Timeline timeline = simulate(order, costs);

  const std::string title =
      fmt::format("{}, {} ranks, {} stages, {} micro-batches of {} sequences", recipe.pipeline.schedule,
                  recipe.pipeline.degree, order.num_stages(), micro_batches, memory.shape.sequences);
  fmt::print("{}\n\n{}", title, to_text(timeline, text_width()));
  fmt::print("F forward, C recompute, B backward{}, W weight gradients, . bubble; costs are FLOPs\n",
             recipe.pipeline.schedule.starts_with("zb") ? "" : " with weight gradients");
  print_ranks(shapes_of_ranks(memory.shape), order, timeline);
  fmt::print("\nbubble of the step, mean of the ranks  {:.1f} %\n", 100 * timeline.bubble());
  StageCost mean{0, 0, 0, 0, 0};
  for (const StageCost& cost : costs) mean.forward += cost.forward / static_cast<double>(costs.size());
  mean.backward = mean.weight = mean.forward;
  if (const auto idle = bubble_formula(recipe.pipeline, micro_batches, mean); idle && !memory.shape.recomputes_stages) {
    const double work = micro_batches * 3 * mean.forward * static_cast<double>(order.num_stages()) /
                        static_cast<double>(recipe.pipeline.degree);
    fmt::print("by the formula, if stages cost the same {:.1f} %\n", 100 * *idle / (work + *idle));
  }
  if (!arguments.svg.empty()) {
    write_file_durably(arguments.svg, to_svg(timeline, order.rank_of_stage, title), "inspect");
    fmt::print("drawn in {}\n", arguments.svg);
  }
  return 0;
}

}  // namespace caravan::app
