#include <filesystem>
#include <vector>

#include <fmt/format.h>

#include "apps/caravan/commands.h"
#include "apps/caravan/launch/ranks.h"
#include "caravan/base/error.h"
#include "caravan/base/text.h"
#include "caravan/data/unicode/utf8.h"
#include "caravan/nn/loss/ignored_label.h"
#include "caravan/train/dataset/dataset.h"
#include "caravan/train/dataset/task_dataset.h"

namespace caravan::app {
namespace {

namespace fs = std::filesystem;

/// The recipe, or the default recipe with this text.
Recipe recipe_of(const DataArguments& arguments) {
  const fs::path file(arguments.file);
  if (arguments.file.empty() || file.extension() == ".toml") return load_recipe(file, arguments.overrides);
  Recipe recipe = load_recipe("", arguments.overrides);
  for (const char* key : {"data.text", "data.sources"}) {
    if (!recipe.locations.contains(key)) continue;
    throw UsageError({"data inspect", key, "names a text, and so does the command: " + arguments.file,
                      recipe.where(key), "give one of them"});
  }
  recipe.data.text = {arguments.file};
  return recipe;
}

/// The bytes of a token in quotes, with unprintable characters escaped.
std::string quoted(std::string_view bytes) {
  std::string out = "\"";
  while (!bytes.empty()) {
    const Utf8Step step = utf8_step(bytes);
    const char first = bytes.front();
    const bool is_plain = step.kind == Utf8Step::complete && (step.length > 1 || (first >= 0x20 && first < 0x7f));
    if (first == '\n') {
      out += "\\n";
    } else if (first == '"' || first == '\\') {
      out += fmt::format("\\{}", first);
    } else if (is_plain) {
      out += bytes.substr(0, step.length);
    } else {
      for (const char byte : bytes.substr(0, step.length)) out += fmt::format("\\x{:02X}", static_cast<uint8_t>(byte));
    }
    bytes.remove_prefix(step.length);
  }
  return out + '"';
}

std::string token_text(const Tokenizer& tokenizer, int64_t id) {
  return quoted(tokenizer.token_bytes(static_cast<int32_t>(id)));
}

void print_texts(const Dataset& data, const Recipe& recipe, const TaskRows& rows) {
  const char* of_answers = recipe.data.has_chats() ? " of answers" : "";  // text_bytes counts only them
  for (const Dataset::Text& text : data.train) {
    fmt::print("text        {}: {} tokens, {}{}\n", text.name, text.tokens.size(),
               format_bytes(text.tokens.info().text_bytes), of_answers);
  }
  for (size_t i = 0; data.streamed && i < data.streamed->texts->size(); ++i) {
    fmt::print("text        {}: streamed, the number of its tokens is known when all of it has been visited\n",
               data.train_name(i));
  }
  fmt::print("validation  {} tokens, {}{}{}\n", data.validation.tokens.size(),
             format_bytes(data.validation.tokens.info().text_bytes), of_answers,
             recipe.data.validation.empty()
                 ? fmt::format(": the last {:g} of each file{}", recipe.data.validation_fraction,
                               data.streamed ? fmt::format(", at most {}", format_bytes(kMostStreamedValidation)) : "")
                 : ": " + join(recipe.data.validation));
  if (!data.class_names.empty()) fmt::print("classes     {}: {}\n", data.class_names.size(), join(data.class_names));
  for (const std::string& note : dataset_notes(data, rows, recipe)) fmt::print("note        {}\n", note);
  const auto end = data.tokenizer.end_of_text();
  fmt::print("tokenizer   {} tokens, {}\n", data.tokenizer.vocab_size(),
             end ? fmt::format("end of text {} ({})", *end, token_text(data.tokenizer, *end)) : "no end of text");
}

/// The target of a token, as text: a class by its name.
std::string target_text(const Dataset& data, int64_t label) {
  if (label == kIgnoredLabel) return "-";
  if (data.class_names.empty()) return token_text(data.tokenizer, label);
  return fmt::format("{} ({})", label, quoted(std::string_view(data.class_names.at(static_cast<size_t>(label)))));
}

/// One token per line: its position and document, its id and text, and its target; of pairs its type, and of sources
/// and targets which of them it belongs to.
void print_sample(const Dataset& data, const TaskRows& rows, int64_t sample) {
  const RowShape shape = rows.shape();
  const auto count = static_cast<size_t>(shape.length);
  std::vector<int64_t> ids(count), labels(count), documents(count), positions(count), types(count);
  RowBuffers row{.ids = ids, .labels = labels};
  if (shape.has_documents) row.documents = documents;
  if (shape.has_positions) row.positions = positions;
  if (shape.has_token_types) row.token_types = types;
  rows.fill(sample, row);
  const TaskRows::Draw draw = rows.draw(sample);
  fmt::print("\nsequence {}, number {} of {}, {} targets\n", sample, draw.sample, data.train_name(draw.source),
             rows.num_targets(sample, 1));
  const auto optional_column = [&](bool is_used, const auto& text) {
    return is_used ? fmt::format("{:>8}  ", text) : std::string();
  };
  const auto of_sequence = static_cast<int64_t>(count) / shape.num_sequences;  // pairs: the chosen, the rejected one
  const bool are_pairs = shape.num_sequences > 1;
  fmt::print("{}{}{:>8}  {:>8}  {}{:>8}  {:<24}  target\n", optional_column(shape.num_sources > 0, "read by"),
             optional_column(are_pairs, "answer"), "position", "document",
             optional_column(shape.has_token_types, "type"), "id", "token");
  for (size_t t = 0; t < count; ++t) {
    const auto index = static_cast<int64_t>(t);
    const bool is_source = index < shape.num_sources;
    const int64_t in_part = (is_source ? index : index - shape.num_sources) % of_sequence;
    fmt::print("{}{}{:>8}  {:>8}  {}{:>8}  {:<24}  {}\n",
               optional_column(shape.num_sources > 0, is_source ? "encoder" : "decoder"),
               optional_column(are_pairs, index < of_sequence ? "chosen" : "rejected"),
               shape.has_positions ? positions[t] : in_part, documents[t],
               optional_column(shape.has_token_types, types[t]), ids[t], token_text(data.tokenizer, ids[t]),
               target_text(data, labels[t]));
  }
}

/// Prepares a sample of each source, for the notes of their first parts.
void prepare_first_parts(const TaskRows& rows) {
  const size_t count = rows.drawn(0).size();
  for (size_t source = 0; source < count; ++source) {
    int64_t sample = 0;
    while (rows.draw(sample).source != source) ++sample;
    rows.prepare(sample, sample + 1);
  }
}

}  // namespace

int inspect_data(const DataArguments& arguments) {
  const Recipe recipe = recipe_of(arguments);
  const Dataset data = open_dataset(recipe.data, data_folders(recipe.folder), DataObserver::none(), StreamRole::builds,
                                    recipe.model.context);
  const auto rows = train_rows(data, recipe.data, row_settings(recipe), recipe.train.seed);
  if (data.streamed) prepare_first_parts(*rows);
  print_texts(data, recipe, *rows);
  for (int64_t i = 0; i < arguments.num_samples; ++i) print_sample(data, *rows, arguments.first_sample + i);
  return 0;
}

}  // namespace caravan::app
