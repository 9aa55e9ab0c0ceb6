#include <algorithm>
#include <cctype>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include <fmt/format.h>
#include <toml++/toml.h>

#include "caravan/base/error.h"
#include "caravan/base/text.h"
#include "caravan/data/unicode/utf8.h"
#include "caravan/formats/checkpoint/manifest.h"
#include "caravan/formats/huggingface/architectures/architecture_row.h"
#include "caravan/recipe/init_from.h"
#include "caravan/recipe/is_override.h"
#include "caravan/recipe/key_kinds.h"
#include "caravan/recipe/points_file.h"
#include "caravan/recipe/recipe_key.h"
#include "caravan/recipe/recipe_value.h"
#include "caravan/registry/registry.h"

namespace caravan {
namespace {

/// Where a value was given: a file and line, or an override.
struct Source {
  std::string name;
  bool is_override = false;
  std::string at(const toml::node& node) const {
    return is_override ? "--set " + name : fmt::format("{}:{}", name, node.source().begin.line);
  }
};

[[noreturn]] void refuse(const std::string& key, const std::string& fact, const std::string& where,
                         const std::string& action) {
  throw UsageError({.op = "recipe", .subject = key, .fact = fact, .where = where, .action = action});
}

void apply(Recipe& recipe, const std::string& name, const toml::node& node, const Source& source) {
  std::vector<std::string> names;
  for (const RecipeKey& key : recipe_keys()) {
    names.push_back(key.name);
    if (key.name != name) continue;
    std::string wrong;
    const auto value = read_value(node, wrong);
    if (value) wrong = key.set(recipe, *value);
    if (!wrong.empty()) {
      refuse(name, wrong, source.at(node), fmt::format("{}; the default is {}", key.help, to_toml(key.get(Recipe()))));
    }
    recipe.locations[name] = source.at(node);
    return;
  }
  // The same word in another section is a better guess than a similar word in this one.
  const std::string word = name.substr(name.find('.'));
  for (const std::string& other : names) {
    if (other.ends_with(word)) refuse(name, "no such key", source.at(node), "the nearest is " + other);
  }
  refuse(name, "no such key", source.at(node), "the nearest is " + nearest(name, names));
}

/// Refuses a key that is not in a section.
void refuse_without_section(const std::string& name, const toml::node& node, const Source& source) {
  for (const RecipeKey& key : recipe_keys()) {
    const size_t dot = key.name.find('.');
    if (key.name.substr(dot + 1) == name)
      refuse(name, "is outside of any section", source.at(node), "put it under [" + key.name.substr(0, dot) + "]");
  }
}

void apply_table(Recipe& recipe, const toml::table& table, const Source& source) {
  std::set<std::string> sections;
  for (const RecipeKey& key : recipe_keys()) sections.insert(key.name.substr(0, key.name.find('.')));
  const std::vector<std::string> names(sections.begin(), sections.end());
  for (const auto& [section, node] : table) {
    const std::string name(section.str());
    if (!sections.contains(name) && !node.is_table()) refuse_without_section(name, node, source);
    if (!sections.contains(name))
      refuse("[" + name + "]", "no such section", source.at(node), "the nearest is [" + nearest(name, names) + "]");
    const auto* keys = node.as_table();
    if (keys == nullptr)
      refuse(name, "is a section, not a value", source.at(node), "write [" + name + "] and its keys below");
    for (const auto& [key, value] : *keys) apply(recipe, name + "." + std::string(key.str()), value, source);
  }
}

/// Line `number` of `text`, counted from 1.
std::string line_of(const std::string& text, size_t number) {
  std::istringstream lines(text);
  std::string line;
  for (size_t i = 0; i < number; ++i) std::getline(lines, line);
  return line;
}

/// The word after '=' if it is a single word, which TOML takes for a broken number or boolean.
std::string bare_word(const std::string& line) {
  const size_t equals = line.find('=');
  if (equals == std::string::npos) return "";
  const std::string value = line.substr(equals + 1, line.find('#') - equals - 1);
  std::istringstream words(value);
  std::string word;
  std::string more;
  if (!(words >> word) || words >> more || std::isalpha(static_cast<unsigned char>(word.front())) == 0) return "";
  return word.find_first_of("\"'[]{}") == std::string::npos ? word : "";
}

toml::table parse(const std::string& text, const std::string& source) {
  try {
    return toml::parse(text, source);
  } catch (const toml::parse_error& error) {
    const auto line = static_cast<size_t>(error.source().begin.line);
    const std::string where = fmt::format("{}:{}", source, line);
    const std::string word = bare_word(line_of(text, line));
    if (!word.empty()) {
      refuse("", fmt::format("{} is not a value of TOML", word), where,
             fmt::format("write a number, true, false, or text in quotes: \"{}\"", word));
    }
    refuse("", std::string(error.description()), where, "correct the TOML of this line");
  }
}

void apply_override(Recipe& recipe, const std::string& override) {
  const size_t equals = override.find('=');
  if (equals == std::string::npos || override.substr(0, equals).find('.') == std::string::npos) {
    refuse(override, "is not of the form section.key=value", "--set", "write e.g. --set train.steps=20");
  }
  const std::string name = override.substr(0, equals);
  const std::string text = override.substr(equals + 1);
  if (utf8_error(override) != kNoUtf8Error) refuse(name, "is not UTF-8", "--set", "give text in UTF-8");
  toml::table parsed;
  try {
    parsed = toml::parse("value = " + text);
  } catch (const toml::parse_error&) {
    parsed.insert("value", text);
  }
  if (parsed.size() != 1) parsed = toml::table{{"value", text}};
  if (name == "model.kind") forget_architecture(recipe);
  apply(recipe, name, *parsed.get("value"), {override, true});
}

/// The keys of `recipe` that are given and used.
std::set<std::string> used_keys(const Recipe& recipe) {
  std::set<std::string> names;
  for (const RecipeKey& key : recipe_keys()) {
    if (recipe.locations.contains(key.name) && key.idle(recipe).empty()) names.insert(key.name);
  }
  return names;
}

/// Drops what a file says about something that an override switches off, such as the schedule of a run's pipeline when
/// it is resumed on one rank.
void drop_unused(Recipe& recipe, const std::set<std::string>& used_in_file) {
  const Recipe defaults;
  for (const RecipeKey& key : recipe_keys()) {
    const bool is_of_file = used_in_file.contains(key.name) && !is_override(recipe, key.name);
    if (!is_of_file || key.idle(recipe).empty()) continue;
    key.set(recipe, key.get(defaults));
    recipe.locations.erase(key.name);
  }
}

/// The loss of a pair needs both of its sequences whole, on one rank.
void check_preference(const Recipe& recipe) {
  const auto refuse_split = [&](const char* key, std::string_view fact, std::string_view better) {
    recipe.refuse(key, fmt::format("{}: data.task = \"preference\" compares whole answers on one rank", fact),
                  std::string(better));
  };
  const char* other_axes = "use mesh.dp, mesh.tp or mesh.pp";
  const PreferenceChoice& of = recipe.data.task.preference;
  if (of.chosen_field == of.rejected_field) {
    recipe.refuse("data.chosen_field", fmt::format("\"{}\" is data.rejected_field too", of.chosen_field),
                  "name the field of each answer");
  }
  if (of.prompt_field == of.chosen_field || of.prompt_field == of.rejected_field) {
    recipe.refuse("data.prompt_field", fmt::format("\"{}\" is the field of an answer too", of.prompt_field),
                  "name the field of the prompt");
  }
  if (recipe.context_parallel.is_used()) refuse_split("mesh.cp", "splits sequences over ranks", other_axes);
  if (recipe.expert_parallel.is_used()) refuse_split("mesh.ep", "splits the rows of a batch over ranks", other_axes);
  if (row_parts(recipe) > 1) {
    refuse_split("tensor_parallel.kind", "splits the rows of a batch over ranks",
                 fmt::format("use \"{}\"", first_of("tensor_parallel").name));
  }
  if (!recipe.model.lora.saved.empty() && recipe.data.task.preference.reference.empty()) {
    recipe.refuse("lora.modules_to_save",
                  "trains modules whole, so that the weights that answers are compared with do not remain in the model",
                  "set preference.reference to the folder of the weights under the adapters");
  }
  if (recipe.pipeline.is_used() && recipe.pipeline.has_windows()) {
    recipe.refuse("pipeline.schedule",
                  "stages do not wait for each other, but data.task = \"preference\" runs a reference model between "
                  "steps",
                  fmt::format("use \"{}\"", first_of("pipeline").name));
  }
}

/// Refuses what the model cannot learn.
void check_task(const Recipe& recipe) {
  const ModelConfig& model = recipe.model;
  const std::string& task = recipe.data.task.kind;
  const bool sees_all = !model.arch.is_causal;
  const auto refuse_task = [&](std::string_view fact, std::string_view better) {
    recipe.refuse("data.task", fmt::format("\"{}\" {}", task, fact), fmt::format("use {}", better));
  };
  const char* of_encoder = "\"spans\" or \"pairs\"";
  if (sees_all && (task == "next" || task == "pairs" || task == "preference")) {
    refuse_task("of a model whose tokens see all of their text", "\"masked\" or \"classify\"");
  }
  if (!sees_all && task == "masked") {
    refuse_task("of a model whose tokens see earlier ones only",
                model.has_encoder() ? of_encoder : "\"next\", or model.kind = \"bert\"");
  }
  if (model.has_encoder() && (task == "next" || task == "classify" || task == "preference")) {
    refuse_task("of a model with an encoder and a decoder", of_encoder);
  }
  if (recipe.data.task.has_preferences()) check_preference(recipe);
}

/// Frequencies that depend on the length of a text follow that of a row, which for a row of short documents is another
/// model than for each document alone.
void check_rope(const Recipe& recipe) {
  const RopeScaling& scaling = recipe.model.rope_scaling;
  const int64_t original = scaling.original_context > 0 ? scaling.original_context : recipe.model.context;
  const bool restarts = recipe.data.packs_documents() && recipe.data.positions == "restart";
  if (!scaling.depends_on_length() || !restarts || recipe.model.context <= original) return;
  recipe.refuse(
      "data.pack",
      fmt::format("\"documents\", whose positions restart, in rows of {} tokens: above {} the frequencies of "
                  "model.rope_scaling depend on the length of the text, which here is that of a row",
                  recipe.model.context, original),
      fmt::format("use data.positions = \"continue\", data.pack = \"none\", or model.context = {}", original));
}

/// A source is read by an encoder: the first of the layers.
void check_encoder(const Recipe& recipe) {
  const ModelConfig& model = recipe.model;
  const ArchitectureRow* row = find_architecture(model.arch.name);
  if (row != nullptr && row->base.has_encoder() && !model.has_encoder()) {
    refuse("model.encoder_layers", fmt::format("is 0, and {} has an encoder", row->name), recipe.where("model.kind"),
           fmt::format("use encoder_layers = {} of {} layers, and a source_context",
                       std::max<int64_t>(model.layers / 2, 1), std::max<int64_t>(model.layers, 2)));
  }
}

/// Checks the rules between keys: unused keys that are given, and values that conflict.
void check_whole(Recipe& recipe) {
  check_encoder(recipe);
  for (const RecipeKey& key : recipe_keys()) {
    const std::string reason = key.idle(recipe);
    if (!reason.empty() && recipe.locations.contains(key.name)) {
      refuse(key.name, reason, recipe.where(key.name), "leave it out");
    }
  }
  for (const Setting& setting : {recipe.optimizer.kind, recipe.optimizer.rate.schedule}) {
    if (const auto misfit = setting.entry().check(setting, 1)) recipe.refuse(misfit->key, misfit->fact, misfit->action);
  }
  ModelConfig model = recipe.model;
  check_task(recipe);
  check_rope(recipe);
  if (model.vocabulary == 0) model.vocabulary = 1;  // the tokenizer's, not yet known
  try {
    model.validate();
  } catch (const UsageError& error) {
    refuse(error.text().subject, error.text().fact, recipe.where_given(error.text().subject), error.text().action);
  }
}

/// The fill that a run gives is that of its data.format: if an override changes that, chats in place of texts, or texts
/// in place of chats, have their own default.
void forget_fill_of_other_format(Recipe& recipe, bool had_chats) {
  if (recipe.data.has_chats() == had_chats || is_override(recipe, "data.fill")) return;
  recipe.data.fill = Recipe().data.fill;
  recipe.locations.erase("data.fill");
}

}  // namespace

Recipe parse_recipe(const std::string& toml, const std::string& source, const std::vector<std::string>& overrides,
                    RecipeWriter writer) {
  Recipe recipe;
  if (writer == RecipeWriter::run) {  // what runs had before there were these keys
    recipe.data.fill = "stream";
    recipe.model.lora.experts = false;
  }
  apply_table(recipe, parse(toml, source), {source});
  const std::set<std::string> used_in_file = used_keys(recipe);
  const bool had_chats = recipe.data.has_chats();
  for (const std::string& override : overrides) apply_override(recipe, override);
  if (writer == RecipeWriter::run) forget_fill_of_other_format(recipe, had_chats);
  refuse_unused_points(recipe, writer);
  drop_unused(recipe, used_in_file);
  apply_init_from(recipe, std::filesystem::path(source).parent_path());
  read_points_file(recipe, std::filesystem::path(source).parent_path());
  choose_warmup(recipe);
  recipe.optimizer.rate.total_steps = recipe.train.steps;
  check_whole(recipe);
  return recipe;
}

namespace {

std::filesystem::path folder_of(const std::filesystem::path& file) {
  return file.has_parent_path() ? file.parent_path() : ".";
}

bool is_of_run(const std::filesystem::path& file) {
  return file.filename() == "recipe.toml" && !list_checkpoints(folder_of(file)).empty();
}

void follow_moved_run(Recipe& recipe, const std::filesystem::path& run) {
  const std::filesystem::path before = recipe.checkpoint.dir;
  if (!is_override(recipe, "checkpoint.dir")) recipe.checkpoint.dir = run.string();
  const bool is_runs_own = !before.empty() && recipe.data.tokenizer == (before / "tokenizer.json").string();
  if (is_runs_own && !is_override(recipe, "data.tokenizer")) recipe.data.tokenizer = (run / "tokenizer.json").string();
}

/// Nothing if it cannot be read. Throws UsageError if the file is too long; it may be a device without an end.
std::optional<std::string> text_of_file(const std::filesystem::path& file) {
  constexpr size_t kLongest = size_t{4} << 20;
  std::ifstream in(file);
  std::string text(kLongest + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));  // at the end of the file also sets the fail bit
  std::error_code error;
  if (!in.is_open() || in.bad() || std::filesystem::is_directory(file, error)) return {};
  text.resize(static_cast<size_t>(in.gcount()));
  if (text.size() > kLongest) refuse(file.string(), "is not a recipe: it is longer than 4 MiB", "", "name a TOML file");
  return text;
}

/// An unknown schedule is a file, in the current folder or beside the recipe.
void read_table(Recipe& recipe) {
  PipelineChoice& pipeline = recipe.pipeline;
  if (!pipeline.is_used() || !pipeline.is_file()) return;
  for (const std::filesystem::path& file : {std::filesystem::path(pipeline.file), recipe.folder / pipeline.file}) {
    std::optional<std::string> table = text_of_file(file);
    if (!table) continue;
    if (table->empty()) break;
    pipeline.table = std::move(*table);
    pipeline.file = std::filesystem::absolute(file).lexically_normal().string();
    return;
  }
  const std::vector<std::string> known = names_of("pipeline");
  refuse("pipeline.schedule",
         fmt::format("'{}' is neither a file with a table nor one of {}", pipeline.file, join(known)),
         recipe.where("pipeline.schedule"), "the nearest is '" + nearest(pipeline.file, known) + "'");
}

}  // namespace

Recipe load_recipe(const std::filesystem::path& file, const std::vector<std::string>& overrides) {
  if (file.empty()) {
    Recipe recipe = parse_recipe("", "default recipe", overrides);
    read_table(recipe);
    return recipe;
  }
  std::error_code error;
  if (std::filesystem::exists(file / "recipe.toml", error)) {
    refuse(file.string(), "is the folder of a run, not a recipe", "",
           fmt::format("use train {} --resume", (file / "recipe.toml").string()));
  }
  const std::optional<std::string> text = text_of_file(file);
  if (!text) {
    refuse(file.string(), "cannot be read", "", "name a TOML file, or leave it out for the default recipe");
  }
  const bool is_runs_own = is_of_run(file);
  Recipe recipe = parse_recipe(*text, file.string(), overrides, is_runs_own ? RecipeWriter::run : RecipeWriter::user);
  recipe.name = file.stem().string();
  recipe.folder = file.parent_path();
  read_table(recipe);
  if (is_runs_own) follow_moved_run(recipe, folder_of(file));
  return recipe;
}

std::string to_toml(const Recipe& recipe) {
  std::string out;
  std::string section;
  for (const RecipeKey& key : recipe_keys()) {
    if (!key.idle(recipe).empty()) continue;
    const size_t dot = key.name.find('.');
    if (key.name.substr(0, dot) != section) {
      section = key.name.substr(0, dot);
      out += fmt::format("{}[{}]\n", out.empty() ? "" : "\n", section);
    }
    out += fmt::format("{} = {}\n", key.name.substr(dot + 1), to_toml(key.get(recipe)));
  }
  return out;
}

}  // namespace caravan
