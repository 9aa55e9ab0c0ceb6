#include "apps/caravan/commands/evaluate_texts.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "apps/caravan/launch/ranks.h"
#include "caravan/base/error.h"
#include "caravan/base/text.h"
#include "caravan/comm/calls/agree.h"
#include "caravan/formats/checkpoint/manifest.h"
#include "caravan/recipe/is_override.h"
#include "caravan/recipe/recipe.h"
#include "caravan/train/agreement.h"
#include "caravan/train/dataset/task_dataset.h"
#include "caravan/train/evaluation/evaluate.h"

namespace caravan::app {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

template <class T>
std::string override_of(const char* key, const T& value) {
  return fmt::format("{}={}", key, Json(value).dump());
}

/// Refuses what the command line says elsewhere, and keys that do not matter here.
void check_overrides(const EvaluateArguments& arguments) {
  for (const std::string& set : arguments.overrides) {
    const std::string key = set.substr(0, set.find('='));
    static const std::set<std::string> kGiven{
        "data.text",      "data.sources",   "data.validation", "data.validation_fraction",
        "data.streaming", "data.tokenizer", "data.classes"};
    const bool is_given = kGiven.contains(key);
    if (key.starts_with("data.") && !is_given) continue;
    throw UsageError({"evaluate", key, is_given ? "is that of the model or of the files" : "is no key of [data]", "",
                      is_given ? "leave it out" : "--set says how the files are read: data.label_field=topic"});
  }
}

/// The overrides with which texts are windows of one text, unless the user has asked for other rows.
std::vector<std::string> as_windows(const Recipe& recipe) {
  std::vector<std::string> set;
  if (recipe.data.has_chats()) return set;
  if (recipe.data.packs_documents() && !is_override(recipe, "data.pack")) set.emplace_back("data.pack=none");
  if (recipe.data.fills_best() && !is_override(recipe, "data.fill")) set.emplace_back("data.fill=stream");
  return set;
}

/// How the texts are read: as the recipe of a run says, else as is usual for the model.
Recipe evaluation_recipe(const EvaluateArguments& arguments, const LoadedModel& loaded) {
  check_overrides(arguments);
  const fs::path folder = fs::absolute(loaded.origin).lexically_normal();
  std::error_code error;
  const bool is_run = !fs::exists(folder / "config.json", error);
  const RecipeWriter writer = is_run ? RecipeWriter::run : RecipeWriter::user;
  const fs::path tokenizer = (is_run ? folder.parent_path() : folder) / "tokenizer.json";
  std::vector<std::string> set;
  std::string base;
  if (is_run) {
    base = Manifest::read(folder).info.recipe;
    const Recipe::Data data = parse_recipe(base, folder.string(), {}, writer).data;
    if (!data.sources.empty()) set.emplace_back("data.sources=[]");
    if (!data.validation.empty()) set.emplace_back("data.validation=\"\"");
    if (data.streaming) set.emplace_back("data.streaming=false");
  } else {
    set = {override_of("train.init_from", folder.string()),
           override_of("data.task", std::string(usual_task(loaded.model->config())))};
  }
  set.push_back(override_of("data.text", arguments.texts));
  set.push_back(override_of("data.tokenizer", tokenizer.string()));
  if (arguments.field) set.push_back(override_of("data.field", *arguments.field));
  set.insert(set.end(), arguments.overrides.begin(), arguments.overrides.end());
  const auto parse = [&] { return parse_recipe(base, is_run ? folder.string() : "evaluate", set, writer); };
  Recipe recipe = parse();
  if (std::vector<std::string> more = as_windows(recipe); !more.empty()) {
    set.insert(set.end(), more.begin(), more.end());
    recipe = parse();
  }
  if (recipe.data.task.has_preferences()) {
    throw UsageError({"evaluate", "data.task",
                      "is \"preference\", whose loss needs a reference model: the run's train.log has val_loss and "
                      "val_accuracy of pairs",
                      "", "use --set data.task=next, for texts or chats"});
  }
  const bool classifies = recipe.data.task.kind == "classify";
  if (classifies != (loaded.model->config().classes > 0)) {
    throw UsageError({"evaluate", "data.task",
                      fmt::format("is \"{}\", and the model {}", recipe.data.task.kind,
                                  classifies ? "tells no classes apart" : "tells classes apart"),
                      "", classifies ? "use another task" : "use \"classify\""});
  }
  recipe.data.task.classes.clear();
  recipe.data.task.source_classes = loaded.text.tokens.classes;
  return recipe;
}

/// The rows to evaluate; they refer to the dataset.
struct Rows {
  std::unique_ptr<const ValidationRows> all;
  std::string task;
  std::string keys{};  ///< what else makes rows differ
  int64_t num_classes = 0;
  bool are_windows = false;  ///< of one long text, with --stride
  std::string fill{};        ///< of the next tokens of texts and chats, unless are_windows
  std::string pack{};
};

Rows rows_of(const EvaluateArguments& arguments, const LoadedModel& loaded, const Recipe& recipe,
             const Dataset& dataset) {
  const ModelConfig& config = loaded.model->config();
  const int64_t context = evaluated_context(arguments, config);
  const SpecialTokens& special = loaded.text.tokens;
  if (dataset.class_names != special.classes && dataset.class_names != classes_of_records(special)) {
    throw DataError({"evaluate", join(arguments.texts),
                     fmt::format("has the classes {}, and the model {}", some_of(dataset.class_names, 8),
                                 some_of(special.classes, 8)),
                     "", "give records of the model's classes: --set data.label_field=FIELD names their field"});
  }
  Rows rows{
      .all = nullptr, .task = recipe.data.task.kind, .num_classes = static_cast<int64_t>(dataset.class_names.size())};
  const TokenFile& tokens = dataset.validation.tokens;
  if (tokens.size() < 2 && !recipe.data.task.has_records()) {
    throw DataError({"evaluate", join(arguments.texts),
                     fmt::format("has {} token, but an evaluation needs 2", tokens.size()), "", "give more text"});
  }
  const bool tells_apart = recipe.data.packs_documents() || recipe.data.fills_best();
  if (rows.task == "next" && !recipe.data.has_chats() && !tells_apart) {
    const int64_t stride = arguments.stride.value_or(context);
    // A window of a shorter text would be mostly padding.
    const int64_t width = std::min(context, tokens.size() - 1);
    rows.all = std::make_unique<ValidationWindows>(tokens, width, nullptr, std::min(stride, width));
    rows.are_windows = true;
    return rows;
  }
  if (arguments.stride) {
    throw UsageError(
        {"evaluate", "--stride", "is of windows of one text, whose next tokens are predicted", "", "leave it out"});
  }
  RowSettings settings = row_settings(recipe);
  settings.context = context;
  settings.decoder_start = loaded.text.tokens.decoder_start;
  rows.all = validation_rows(dataset, recipe.data, settings);
  if (rows.task == "next") {
    rows.fill = recipe.data.fills_best() ? "best_fit" : "stream";
    rows.pack = recipe.data.pack;
  }
  const TaskChoice& task = recipe.data.task;
  rows.keys = fmt::format("{} {} {} {} {} {}", task.mask_rate, task.whole_words, task.span_length, recipe.data.pack,
                          recipe.data.fills_best(), settings.decoder_start.value_or(-1));
  return rows;
}

/// "231.1401", and "2.286e+47" of a model that knows nothing of the text.
std::string in_short(double perplexity) {
  return perplexity < 1e6 ? fmt::format("{:.4f}", perplexity) : fmt::format("{:.3e}", perplexity);
}

void print(const EvaluateArguments& arguments, const std::string& model, const Rows& rows, const Evaluation& result,
           int64_t context) {
  const bool has_tokens = rows.task != "classify";
  const bool has_bytes = rows.all->text_bytes() > 0;
  if (arguments.json) {
    Json line{{"model", model}, {"texts", arguments.texts}};
    if (!rows.are_windows) line["task"] = rows.task;
    if (!rows.fill.empty()) line["fill"] = rows.fill;
    if (!rows.pack.empty()) line["pack"] = rows.pack;
    line[has_tokens ? "tokens" : "records"] = rows.all->num_targets();
    line["loss"] = result.loss;
    if (has_tokens) line["perplexity"] = std::exp(result.loss);
    if (has_bytes) line["bits_per_byte"] = result.bits_per_byte;
    if (result.accuracy) line["accuracy"] = *result.accuracy;
    if (result.macro_f1) line["macro_f1"] = *result.macro_f1;
    line["context"] = context;
    if (rows.are_windows) line["stride"] = arguments.stride.value_or(context);
    fmt::print("{}\n", line.dump(-1, ' ', false, Json::error_handler_t::replace));
    return;
  }
  fmt::print("model          {}\n", model);
  if (!rows.are_windows) fmt::print("task           {}\n", rows.task);
  if (!rows.fill.empty()) {
    fmt::print("sequences      data.fill = \"{}\", data.pack = \"{}\"\n", rows.fill, rows.pack);
  }
  fmt::print("{:<14} {}\n", has_tokens ? "tokens" : "records", rows.all->num_targets());
  fmt::print("loss           {:.4f} nats per {}\n", result.loss, has_tokens ? "token" : "record");
  if (has_tokens) fmt::print("perplexity     {}\n", in_short(std::exp(result.loss)));
  if (has_bytes) fmt::print("bits per byte  {:.4f}\n", result.bits_per_byte);
  if (result.accuracy) fmt::print("accuracy       {:.4f}\n", *result.accuracy);
  if (result.macro_f1) fmt::print("macro F1       {:.4f}\n", *result.macro_f1);
}

}  // namespace

RoundCounter::RoundCounter(const Communicator& world) : shows_(world.rank() == 0 && ::isatty(STDERR_FILENO) == 1) {}

RoundCounter::~RoundCounter() {
  if (shows_) std::fputs("\r\033[K", stderr);
}

void RoundCounter::show(int64_t done, int64_t total) const {
  if (shows_) fmt::print(stderr, "\rround {} of {}", done, total);
}

int64_t evaluated_context(const EvaluateArguments& arguments, const ModelConfig& config) {
  const int64_t context = arguments.context.value_or(config.context);
  if (context > config.context) {
    throw UsageError({"evaluate", "--context",
                      fmt::format("{} is more than the model's context of {}", context, config.context), "",
                      fmt::format("use 1 to {}", config.context)});
  }
  if (const int64_t stride = arguments.stride.value_or(context); stride > context) {
    throw UsageError({"evaluate", "--stride", fmt::format("{} is more than the context of {}", stride, context), "",
                      fmt::format("use 1 to {}", context)});
  }
  return context;
}

void check_same_evaluation(Communicator& world, const LoadedModel& loaded, std::vector<SharedFact> facts) {
  facts.push_back({"the model", fs::path(loaded.origin).filename().string()});
  facts.push_back({"the weights", loaded.identity});
  facts.push_back({"the tokenizer", loaded.tokenizer.hash().hex()});
  facts.push_back({"the program", program_build()});
  check_same_on_all_ranks(world, "evaluate", facts);
}

void evaluate_texts(const EvaluateArguments& arguments, LoadedModel& loaded, Communicator& world) {
  std::optional<Dataset> dataset;
  Rows rows;
  const auto open = [&] {
    const Recipe recipe = evaluation_recipe(arguments, loaded);
    dataset.emplace(open_evaluation(recipe.data, data_folders(), loaded.tokenizer));
    rows = rows_of(arguments, loaded, recipe, *dataset);
    check_targets(*rows.all, 0);
  };
  all_or_none(world, open, "texts");
  const int64_t context = evaluated_context(arguments, loaded.model->config());
  check_same_evaluation(world, loaded,
                        {{"the text", dataset->validation.tokens.info().content.hex()},
                         {"data.task", rows.task},
                         {"the keys of data", rows.keys},
                         {"--context", std::to_string(context)},
                         {"--stride", std::to_string(arguments.stride.value_or(context))},
                         {"--batch", std::to_string(arguments.batch)}});
  const RoundCounter counter(world);
  const auto result = caravan::evaluate(*loaded.model, world, *rows.all,
                                        {.rows = arguments.batch,
                                         .has_accuracy = rows.task == "masked" || rows.task == "classify",
                                         .num_classes = rows.num_classes,
                                         .progress = [&](int64_t done, int64_t total) { counter.show(done, total); }});
  if (!std::isfinite(result->loss)) {
    throw NumericsError({"evaluate", loaded.origin, "its loss is not finite", "", "use an earlier checkpoint"});
  }
  if (world.rank() == 0) print(arguments, loaded.origin, rows, *result, context);
}

}  // namespace caravan::app
