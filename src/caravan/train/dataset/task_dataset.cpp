#include "caravan/train/dataset/task_dataset.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/text.h"
#include "caravan/data/tasks/masked_task.h"
#include "caravan/data/tasks/preference_task.h"
#include "caravan/data/tasks/span_task.h"
#include "caravan/recipe/init_from.h"
#include "caravan/train/dataset/dataset_parts.h"

namespace caravan {
namespace {

std::shared_ptr<const WindowTask> window_task(const Tokenizer& tokenizer, const Recipe::Data& data,
                                              const RowSettings& settings) {
  if (data.task.kind == "masked") {
    return std::make_shared<const MaskedTask>(
        tokenizer, settings.context, MaskRule{.rate = data.task.mask_rate, .whole_words = data.task.whole_words});
  }
  if (settings.source_context == 0) {
    throw UsageError({"data", "data.task", "\"spans\" needs an encoder that reads the text without them", "",
                      "use a model with an encoder and a decoder, as t5; or data.task = \"masked\" or \"next\""});
  }
  const int64_t start = settings.decoder_start.value_or(filling_token(tokenizer));
  return std::make_shared<const SpanTask>(tokenizer, settings.source_context, settings.context,
                                          SpanRule{.rate = data.task.mask_rate, .mean_length = data.task.span_length},
                                          start);
}

std::shared_ptr<const RecordTask> record_task(const Tokenizer& tokenizer, const Recipe::Data& data,
                                              const RowSettings& settings) {
  if (data.task.kind == "classify") {
    return std::make_shared<const ClassifyTask>(tokenizer, settings.context, !data.task.pair_field.empty(),
                                                settings.label_place);
  }
  if (data.task.has_preferences()) {
    return std::make_shared<const PreferenceTask>(tokenizer, settings.context, data.has_chats());
  }
  return std::make_shared<const PairTask>(tokenizer, PairTask::Settings{.context = settings.context,
                                                                        .source_context = settings.source_context,
                                                                        .decoder_start = settings.decoder_start});
}

Fill fill_of(const Recipe::Data& data) { return data.fills_best() ? Fill::whole_documents : Fill::windows; }

RecordList records_of(const Dataset::Text& text, const Recipe::Data& data) {
  return {text.tokens, text.index.value(), data.task.has_preferences() ? ThirdNumber::tokens : ThirdNumber::label};
}

}  // namespace

RowSettings row_settings(const Recipe& recipe, const std::filesystem::path& checkpoint) {
  RowSettings settings{.context = recipe.model.context,
                       .source_context = recipe.model.source_context,
                       .label_place = recipe.model.arch.is_causal ? LabelPlace::last : LabelPlace::first};
  if (!recipe.model.has_encoder()) return settings;
  const std::filesystem::path source = checkpoint.empty() ? std::filesystem::path(recipe.train.init_from) : checkpoint;
  if (!source.empty()) settings.decoder_start = read_init_source(source).tokens.decoder_start;
  return settings;
}

RowShape row_shape(const Recipe& recipe) {
  const TaskChoice& task = recipe.data.task;
  const bool has_padding =
      task.kind == "classify" ? !recipe.model.arch.is_causal : task.kind == "pairs" && recipe.model.has_encoder();
  const bool packs = recipe.data.packs_documents();
  return {.length = recipe.model.row_length() * task.sequences(),
          .num_sources = recipe.model.source_context,
          .has_documents = packs || has_padding,
          .has_positions = packs,
          .has_token_types = task.kind == "classify" && !task.pair_field.empty(),
          .num_sequences = task.sequences()};
}

void fit_classes(Recipe& recipe, const Dataset& dataset) {
  const auto classes = static_cast<int64_t>(dataset.class_names.size());
  recipe.data.task.classes = dataset.class_names;
  if (recipe.model.classes == classes) return;
  if (recipe.model.classes > 0 && (classes == 0 || recipe.locations.contains("model.classes"))) {
    recipe.refuse("model.classes", fmt::format("is {}, but the data has {} classes", recipe.model.classes, classes),
                  classes == 0 ? "set data.task = \"classify\"" : "leave it out");
  }
  recipe.model.classes = classes;
}

std::unique_ptr<const TaskRows> train_rows(const Dataset& dataset, const Recipe::Data& data,
                                           const RowSettings& settings, int64_t seed) {
  if (data.task.kind == "next") {
    return std::make_unique<TrainWindows>(dataset.train_windows(settings.context, seed, fill_of(data)));
  }
  if (!data.task.has_records()) {
    auto task = window_task(dataset.tokenizer, data, settings);
    TrainWindows windows = dataset.train_windows(task->window(), seed);
    return std::make_unique<WindowTaskRows>(std::move(windows), std::move(task), static_cast<uint64_t>(seed));
  }
  std::vector<RecordSource> sources;
  for (const Dataset::Text& text : dataset.train) {
    sources.push_back({.records = records_of(text, data), .weight = text.weight, .name = text.name});
  }
  return std::make_unique<RecordTaskRows>(std::move(sources), record_task(dataset.tokenizer, data, settings),
                                          static_cast<uint64_t>(seed));
}

std::unique_ptr<const ValidationRows> validation_rows(const Dataset& dataset, const Recipe::Data& data,
                                                      const RowSettings& settings) {
  const Dataset::Text& text = dataset.validation;
  if (data.task.kind == "next") {
    return std::make_unique<ValidationWindows>(dataset.validation_windows(settings.context, fill_of(data)));
  }
  if (!data.task.has_records()) {
    return std::make_unique<WindowTaskValidation>(text.tokens, window_task(dataset.tokenizer, data, settings));
  }
  return std::make_unique<RecordTaskValidation>(records_of(text, data), record_task(dataset.tokenizer, data, settings));
}

RecordFields record_fields(const Recipe::Data& data) {
  if (const PreferenceChoice& of = data.task.preference; data.task.has_preferences()) {
    return {.first = of.prompt_field, .second = of.chosen_field, .label = {}, .third = of.rejected_field};
  }
  if (data.task.kind == "pairs") return {.first = data.task.source_field, .second = data.task.target_field};
  return {.first = data.field.empty() ? "text" : data.field,
          .second = data.task.pair_field,
          .label = data.task.label_field};
}

std::vector<std::string> checked_class_names(const Recipe::Data& data, const std::vector<std::string_view>& records) {
  const TaskChoice& task = data.task;
  if (!task.classes.empty()) return task.classes;
  std::vector<std::string> names = class_names_of(records);
  // A model without names of its classes has numbers for them.
  for (const std::vector<std::string>& known :
       {task.source_classes, classes_of_records({.classes = task.source_classes})}) {
    const auto is_known = [&](const std::string& name) { return std::ranges::find(known, name) != known.end(); };
    if (!known.empty() && std::ranges::all_of(names, is_known)) return known;
  }
  if (names.size() >= 2 || records.empty()) return names;
  std::string fact = fmt::format("has records of one class only, {}", names.front());
  if (!task.source_classes.empty()) {
    fact += ", which is none of the model's: " + some_of(task.source_classes, 8);
  }
  throw DataError(
      {"data", join(text_paths(data)), fact, "", "give records of two classes or more, or another data.label_field"});
}

Dataset::Text tokenized_records(const Recipe::Data& data, const DataFolders& folders, const Tokenizer& tokenizer,
                                const std::vector<std::string_view>& records, const RecordLabels& labels,
                                DataObserver& observer) {
  if (records.empty()) {
    throw DataError({"data", join(text_paths(data)), "leaves no record for training, or none for validation", "",
                     "give more of them, or another data.validation_fraction"});
  }
  RecordTokens made =
      open_or_build_records(folders.cache, records, tokenizer, labels.classes, labels.place_of, observer);
  return {.tokens = std::move(made.tokens), .index = std::move(made.index)};
}

}  // namespace caravan
