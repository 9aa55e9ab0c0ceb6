#include <cstdio>

#include <fmt/format.h>

#include "apps/caravan/commands.h"
#include "apps/caravan/ranks.h"
#include "caravan/base/text.h"
#include "caravan/comm/communicator.h"
#include "caravan/data/tokenizer.h"

namespace caravan::app {
namespace {

struct Vocabulary {
  int64_t size;
  const char* note;
};

Vocabulary vocabulary_of(const Recipe& recipe) {
  if (recipe.model.vocabulary > 0) return {recipe.model.vocabulary, ""};
  if (recipe.data.tokenizer.empty())
    return {recipe.data.trained_vocabulary, " (of the tokenizer to be trained, at most)"};
  if (recipe.data.tokenizer == "bytes") return {256, " (bytes)"};
  return {Tokenizer::load(find_file(recipe.data.tokenizer, data_folders(recipe.folder))).vocab_size(), ""};
}

void print(const std::string& name, const std::string& value) { fmt::print("  {:<26}{}\n", name, value); }

std::string bytes_line(int64_t bytes) { return fmt::format("{:>14} bytes  ({})", bytes, format_bytes(bytes)); }

void print_memory(const Recipe& recipe, int64_t parameters) {
  const int moments = recipe.optimizer.kind == "adamw" ? 2 : recipe.optimizer.momentum > 0 ? 1 : 0;
  const int64_t copies = recipe.precision.compute == "bf16" ? 2 * parameters : 0;
  fmt::print("bytes per rank, without activations and alignment\n");
  print("parameters, fp32", bytes_line(4 * parameters));
  if (copies > 0) print("compute copies, bf16", bytes_line(copies));
  print("gradients, fp32", bytes_line(4 * parameters));
  print(fmt::format("{} moments, fp32", moments), bytes_line(4 * parameters * moments));
  print("together", bytes_line(4 * parameters * (2 + moments) + copies));
}

}  // namespace

int inspect(const InspectArguments& arguments) {
  if (!arguments.flight_folder.empty()) return inspect_flight(arguments.flight_folder);
  const Recipe recipe = load_recipe(arguments.recipe, arguments.overrides);
  const RankPlan ranks = plan_ranks(recipe, arguments.ranks);
  const BatchPlan plan = plan_batch(recipe, ranks.num_ranks);
  const Vocabulary vocabulary = vocabulary_of(recipe);
  ModelConfig model = recipe.model;
  model.vocabulary = vocabulary.size;
  const int64_t parameters = model.num_parameters();
  const int64_t tokens = recipe.train.global_batch * model.context;
  const auto steps = static_cast<double>(recipe.train.steps);
  const double flops = model.flops_per_token(model.context);

  fmt::print("{}\n", to_toml(recipe));
  fmt::print("# {} ranks, backend {}\n\n", ranks.num_ranks, recipe.comm.backend);
  fmt::print("batch\n");
  print("sequences", plan.to_string());
  print("tokens a step", fmt::format("{} = {} x context {}", tokens, recipe.train.global_batch, model.context));
  print("tokens of the run", fmt::format("{:.0f}", static_cast<double>(tokens) * steps));
  fmt::print("model\n");
  print("vocabulary", fmt::format("{}{}", vocabulary.size, vocabulary.note));
  print("parameters", fmt::format("{}  ({})", parameters, format_count(static_cast<double>(parameters))));
  fmt::print("FLOPs, forward and backward, matrix products only\n");
  print("a token", fmt::format("{:.0f}", flops));
  print("a step, per rank", format_count(flops * static_cast<double>(tokens) / plan.dp));
  print("the run, all ranks", format_count(flops * static_cast<double>(tokens) * steps));
  print_memory(recipe, parameters);
  fmt::print("bytes sent per rank and step\n");
  print("gradients (all-reduce)",
        bytes_line(wire_bytes(Verb::all_reduce, 0, static_cast<int>(plan.dp), 4 * parameters, 0, 0)));
  return 0;
}

}  // namespace caravan::app
