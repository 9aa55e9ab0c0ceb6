#include "apps/caravan/inspect_run.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <numeric>
#include <sstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/caravan/inspect/planned_schedule.h"
#include "caravan/base/error.h"
#include "caravan/base/json_reader.h"
#include "caravan/base/text.h"
#include "caravan/formats/checkpoint/manifest.h"
#include "caravan/formats/huggingface/config_text.h"
#include "caravan/recipe/recipe.h"
#include "caravan/train/folder/metrics.h"

namespace caravan::app {
namespace {

namespace fs = std::filesystem;

void print_fact(const std::string& name, const std::string& value) { fmt::print("{:<12}{}\n", name, value); }

/// The last complete line of train.log: a run in progress may be writing the next one.
nlohmann::json last_metrics(const fs::path& log) {
  std::ifstream file(log);
  nlohmann::json last;
  for (std::string line; std::getline(file, line);) {
    nlohmann::json parsed = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (parsed.is_object()) last = std::move(parsed);
  }
  return last;
}

int64_t step_of_line(const nlohmann::json& line) {
  return line.contains("step") && line["step"].is_number_integer() ? line["step"].get<int64_t>() : 0;
}

/// Throws DataError if the checkpoint is damaged.
std::string contents(const fs::path& checkpoint) {
  const Manifest manifest = Manifest::read(checkpoint);
  int64_t bytes = 0;
  for (const auto& [name, file] : manifest.files) bytes += file.bytes;
  return fmt::format("step {}, {} tensors in {} files, {}{}", manifest.info.step, manifest.tensors.size(),
                     manifest.files.size(), format_bytes(bytes),
                     manifest.info.optimizer_steps == 0 ? ", weights only" : "");
}

/// Prints the counters of a user's program, which has no recipe and a model that is not known here.
void print_counters(const CheckpointInfo& info) {
  std::string text;
  for (const auto& [name, count] : info.counters) text += fmt::format(" {}={}", name, count);
  print_fact("program", fmt::format("its own, at step {}{}", info.step, text));
}

void print_model(const CheckpointInfo& info, const fs::path& checkpoint) {
  if (info.model.empty()) return print_counters(info);
  const ModelConfig model = parse_config_text(info.model, checkpoint.string());
  print_fact("model",
             fmt::format("{}, {} layers of width {}, {} parameters, vocabulary {}, context {}", model.arch.name,
                         model.layers, model.width, format_count(static_cast<double>(model.num_parameters())),
                         model.vocabulary, model.context));
}

void inspect_checkpoint(const fs::path& folder) {
  const CheckpointInfo info = Manifest::read(folder).info;
  print_fact("checkpoint", folder.string());
  print_fact("contents", contents(folder));
  print_model(info, folder);
  fmt::print("\n{}", info.recipe);
}

void print_steps(const fs::path& folder, const std::string& recipe) {
  const nlohmann::json last = last_metrics(folder / "train.log");
  const int64_t done = last.is_object() ? step_of_line(last) : 0;
  const int64_t all =
      recipe.empty() ? 0 : parse_recipe(recipe, (folder / "recipe.toml").string(), {}, RecipeWriter::run).train.steps;
  std::string line = all > 0 ? fmt::format("{} of {}", done, all) : fmt::format("{}", done);
  const auto add = [&](const char* key, const char* label) {
    if (last.is_object() && last.contains(key) && last[key].is_number()) {
      line += fmt::format(", {} {:.4f}", label, last[key].get<double>());
    }
  };
  add("loss", "loss");
  add("val_loss", "validation loss");
  print_fact("steps", line);
}

/// The bubble of each rank of the pipeline by its schedule, from the last readable checkpoint, which has the vocabulary
/// and the number of ranks. "" if there is none.
std::string predicted_bubble(const std::vector<fs::path>& checkpoints) {
  for (auto checkpoint = checkpoints.rbegin(); checkpoint != checkpoints.rend(); ++checkpoint) {
    try {
      const CheckpointInfo info = Manifest::read(*checkpoint).info;
      Recipe recipe = parse_recipe(info.recipe, checkpoint->string(), {}, RecipeWriter::run);
      if (!recipe.pipeline.is_used() || info.numerics.ranks == 0) return "";
      recipe.model = parse_config_text(info.model, checkpoint->string());
      const Timeline timeline = plan_schedule(recipe, static_cast<int>(info.numerics.ranks)).timeline;
      std::string parts = "; predicted:";
      for (size_t rank = 0; rank < timeline.ranks.size(); ++rank) {
        parts += fmt::format(" {:.1f} %", 100 * timeline.bubble(rank));
      }
      return parts;
    } catch (const DataError&) {
      continue;  // damaged: reported by the list of checkpoints
    }
  }
  return "";
}

/// The fraction of the last step in which the rank of each stage waited for others.
void print_bubble(const fs::path& log, const std::vector<fs::path>& checkpoints) {
  const nlohmann::json last = last_metrics(log);
  if (!last.is_object() || !last.contains("bubble") || !last["bubble"].is_array()) return;
  std::string parts;
  for (const nlohmann::json& part : last["bubble"]) {
    if (part.is_number()) parts += fmt::format(" {:.1f} %", 100 * part.get<double>());
  }
  print_fact("bubble", fmt::format("measured at step {}, by rank of the pipeline:{}{}", step_of_line(last), parts,
                                   predicted_bubble(checkpoints)));
}

JsonReader list_of(const JsonReader& value) {
  if (!value.value().is_array()) value.refuse("is not a list", "remove the damaged line");
  return value;
}

double number_of(const JsonReader& value) {
  if (!value.value().is_number()) value.refuse("is not a number", "remove the damaged line");
  return value.value().get<double>();
}

/// Throws DataError if the line is not a log line.
ExpertLoad load_of(const nlohmann::json& line, const fs::path& log) {
  const std::string file = log.string();
  const JsonReader experts = JsonReader(line, "", file, "inspect")["experts"];
  const JsonReader layers = list_of(experts["copies"]);
  ExpertLoad load{.balance = number_of(experts["balance"]), .dropped = number_of(experts["dropped"])};
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    std::vector<int64_t>& counts = load.copies.emplace_back();
    const JsonReader copies = list_of(layers.element(layer));
    for (size_t expert = 0; expert < copies.size(); ++expert) {
      counts.push_back(copies.element(expert).integer(0, INT64_MAX));
    }
  }
  return load;
}

/// The fraction of the copies that each expert of a layer took, in the steps of the last line.
void print_experts(const fs::path& log) {
  const nlohmann::json last = last_metrics(log);
  if (!last.is_object() || !last.contains("experts")) return;
  const ExpertLoad load = load_of(last, log);
  print_fact("experts", fmt::format("at step {}: balance loss {:.3f} (1: even), {:.1f} % of copies dropped",
                                    step_of_line(last), load.balance, 100 * load.dropped));
  fmt::print("  {:>5}  {:>8}  {:>8}  % of the layer's copies, by expert\n", "layer", "least", "most");
  for (size_t layer = 0; layer < load.copies.size(); ++layer) {
    const auto [least, most] = load.extremes(layer);
    const std::vector<int64_t>& counts = load.copies[layer];
    const double all = std::max(1.0, std::accumulate(counts.begin(), counts.end(), 0.0));
    std::string parts;
    for (const int64_t count : counts) parts += fmt::format(" {:.1f}", 100 * static_cast<double>(count) / all);
    fmt::print("  {:>5}  {:>7.2f}x  {:>7.2f}x {}\n", layer, least, most, parts);
  }
}

std::string text_of(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

}  // namespace

int inspect_run(const fs::path& folder) {
  std::error_code error;
  if (fs::exists(folder / "manifest.json", error)) {
    inspect_checkpoint(folder);
    return 0;
  }
  const auto checkpoints = list_checkpoints(folder);
  if (checkpoints.empty() && !fs::exists(folder / "recipe.toml", error)) {
    const bool is_huggingface = fs::exists(folder / "config.json", error);
    throw DataError({"inspect", folder.string(), "is neither a run folder nor a checkpoint", "",
                     is_huggingface ? "caravan import makes a checkpoint of a Hugging Face folder; generate and "
                                      "evaluate read it as it is"
                                    : "name a recipe file, a run folder such as runs/default-1, or one of its "
                                      "checkpoints"});
  }
  const std::string recipe = text_of(folder / "recipe.toml");
  print_fact("run", folder.string());
  print_steps(folder, recipe);
  print_bubble(folder / "train.log", checkpoints);
  print_experts(folder / "train.log");
  bool has_model = false;
  std::string lines;
  for (auto checkpoint = checkpoints.rbegin(); checkpoint != checkpoints.rend(); ++checkpoint) {
    std::string text;
    try {
      text = contents(*checkpoint);
      if (!has_model) print_model(Manifest::read(*checkpoint).info, *checkpoint);
      has_model = true;
    } catch (const DataError& damage) {
      text = "DAMAGED: " + damage.text().fact;
    }
    lines += fmt::format("  {}  {}\n", checkpoint->filename().string(), text);
  }
  fmt::print("checkpoints {}\n{}", checkpoints.size(), lines);
  fmt::print("\n{}", recipe);
  return 0;
}

}  // namespace caravan::app
