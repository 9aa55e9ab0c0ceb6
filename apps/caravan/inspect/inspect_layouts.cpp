#include <algorithm>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "apps/caravan/commands.h"
#include "apps/caravan/launch/check_run.h"
#include "apps/caravan/options/vocabulary.h"
#include "caravan/base/text.h"
#include "caravan/comm/record.h"
#include "caravan/models/model.h"
#include "caravan/train/choice.h"

namespace caravan::app {
namespace {

using Line = std::vector<std::string>;

void print_aligned(const std::vector<Line>& lines) {
  std::vector<size_t> widths(lines.front().size());
  for (const Line& line : lines) {
    for (size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
  }
  for (const Line& line : lines) {
    std::string text;
    for (size_t i = 0; i < line.size(); ++i) {
      text += i + 1 == line.size() ? fmt::format("{:>{}}", line[i], widths[i])
                                   : fmt::format("{:<{}}  ", line[i], widths[i]);
    }
    fmt::print("{}\n", text);
  }
}

std::string shape_of(const std::vector<int64_t>& sizes) { return "[" + join(sizes) + "]"; }

/// A line for each parameter, with the bytes of the sharded parameter in fp32.
std::vector<Line> parameter_lines(const Module& model, const Strategy& strategy, const Mesh& mesh) {
  std::vector<Line> lines{{"parameter", "global shape", "sharded", "unsharded", "local shape", "bytes"}};
  int64_t total = 0;
  for (const Parameter* parameter : model.parameters()) {
    const auto& [rest, leaf] = strategy.layouts.at(parameter->name());
    const Box box{{}, local_shape(parameter->global_shape(), rest, mesh, parameter->name())};
    const int64_t bytes = 4 * box.num_elements();
    total += bytes;
    lines.push_back({parameter->name(), shape_of(parameter->global_shape()), rest.to_string(),
                     leaf == rest ? "the same" : leaf.to_string(), shape_of(box.size), std::to_string(bytes)});
  }
  lines.push_back({"in all", "", "", "", "", std::to_string(total)});
  return lines;
}

}  // namespace

int inspect_layouts(const InspectArguments& arguments) {
  auto [recipe, ranks] = check_run(arguments.recipe, arguments.overrides, arguments.ranks);
  recipe.model.vocabulary = vocabulary_of(recipe).size;
  Mesh mesh = Mesh::create(make_record_world(0, ranks.num_ranks), mesh_axes(recipe, ranks.num_ranks));
  const std::unique_ptr<Model> model = make_model(recipe.model);
  const StrategyChoice choice = strategy_choice(recipe, recipe.model, ranks.num_ranks);
  const Strategy strategy = make_strategy(choice, *model, mesh);
  fmt::print("{}, {} sequences of {} tokens in a micro-batch\n\n", mesh.where(), choice.sequences,
             recipe.model.row_length());
  print_aligned(parameter_lines(*model, strategy, mesh));
  if (strategy.plan != nullptr) fmt::print("\n{}\n", strategy.plan->to_string());
  return 0;
}

}  // namespace caravan::app
