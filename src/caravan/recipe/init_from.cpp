#include "caravan/recipe/init_from.h"

#include <algorithm>
#include <iterator>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/system/file.h"
#include "caravan/formats/checkpoint/manifest.h"
#include "caravan/formats/huggingface/config_text.h"
#include "caravan/formats/huggingface/hf_folder.h"
#include "caravan/formats/peft/peft_config.h"
#include "caravan/recipe/recipe_key.h"

namespace caravan {
namespace {

namespace fs = std::filesystem;

/// Whether a model with another value of this key can take the same weights and computes the same function of a text.
bool may_differ(const RecipeKey& key) {
  const OnResume role = key.on_resume;
  return key.name == "model.context" || key.name == "model.source_context" || key.name == "model.classes" ||
         (role != OnResume::shape && role != OnResume::function);
}

/// A learned vector for each position.
void check_context(const Recipe& recipe, const InitSource& source) {
  if (source.model.arch.positions != Positions::learned || recipe.model.context <= source.model.context) return;
  recipe.refuse("model.context",
                fmt::format("{} tokens, but {} has learned {} positions", recipe.model.context, source.folder.string(),
                            source.model.context),
                fmt::format("use at most {}", source.model.context));
}

/// Looks in the current folder, then beside the recipe; returns an absolute path.
fs::path find_source(const std::string& name, const fs::path& recipe_folder) {
  std::error_code error;
  fs::path path = fs::absolute(name, error).lexically_normal();
  if (!fs::exists(path, error) && !recipe_folder.empty()) {
    path = fs::absolute(recipe_folder / name, error).lexically_normal();
  }
  return path.filename().empty() ? path.parent_path() : path;  // "runs/a/"
}

/// 0 stands for the value that follows from the others, which the source has.
bool is_default_of_kind(const std::string& key, const RecipeValue& given) {
  const auto* number = std::get_if<int64_t>(&given);
  return number != nullptr && *number == 0 &&
         (key == "model.kv_heads" || key == "model.hidden" || key == "model.vocabulary");
}

/// Takes the keys `prefix`.. from the source; throws UsageError for one to which the recipe gives another value.
void take_keys(Recipe& merged, const Recipe& recipe, std::string_view prefix, const std::string& key_of_source,
               const fs::path& source) {
  for (const RecipeKey& key : recipe_keys()) {
    if (!key.name.starts_with(prefix) || !recipe.locations.contains(key.name)) continue;
    const RecipeValue given = key.get(recipe);
    const RecipeValue found = key.get(merged);
    if (given == found || is_default_of_kind(key.name, given)) continue;
    if (!may_differ(key)) {
      recipe.refuse(key.name,
                    fmt::format("is {}, but that of {} is {}", to_toml(given), source.string(), to_toml(found)),
                    fmt::format("leave it out: {} gives it", key_of_source));
    }
    key.set(merged, given);
  }
}

/// Until the data tells how many classes there are, as many as the recipe or its source names, or two: so that whatever
/// needs no data has the right head.
void expect_classes(Recipe& recipe) {
  const TaskChoice& task = recipe.data.task;
  if (task.kind != "classify" || recipe.model.classes > 0) return;
  const std::vector<std::string>& named = task.classes.empty() ? task.source_classes : task.classes;
  recipe.model.classes = std::max<int64_t>(2, std::ssize(named));
}

void apply_adapter(Recipe& recipe, const fs::path& recipe_folder) {
  if (recipe.train.init_from.empty()) {
    recipe.refuse("lora.adapter", "adapters belong to the weights that they were trained with, which are not given",
                  "set train.init_from to these");
  }
  const fs::path path = find_source(recipe.train.adapter, recipe_folder);
  Recipe merged = recipe;
  merged.model.lora = read_peft_config(path, recipe.model).lora;
  take_keys(merged, recipe, "lora.", "lora.adapter", path);
  recipe.model.lora = merged.model.lora;
  recipe.train.adapter = path.string();
}

}  // namespace

std::string reference_folder(const Recipe& recipe) {
  const std::string& given = recipe.data.task.preference.reference;
  if (!given.empty() || recipe.model.lora.is_used()) return given;
  return recipe.train.init_from;
}

InitSource init_source(const Recipe& recipe) {
  InitSource source = read_init_source(recipe.train.init_from);
  source.adapter = recipe.train.adapter;
  return source;
}

InitSource read_init_source(const fs::path& path) {
  std::error_code error;
  if (!fs::exists(path, error)) {
    throw DataError({"init_from", path.string(), "no such folder", "",
                     "name a run, a checkpoint, or a Hugging Face folder with config.json and model.safetensors"});
  }
  const fs::path config = path / "config.json";
  if (fs::exists(config, error)) {
    const MappedFile json(config, "init_from");
    return {.folder = path,
            .is_huggingface = true,
            .model = read_huggingface_config(path),
            .tokens = parse_special_tokens(json.text(), config.string()),
            .text = path};
  }
  const fs::path checkpoint = find_checkpoint(path);
  const Manifest manifest = Manifest::read(checkpoint);
  return {.folder = checkpoint,
          .model = parse_config_text(manifest.info.model, checkpoint.string()),
          .tokens = parse_special_tokens(manifest.info.model, checkpoint.string()),
          .text = checkpoint.parent_path()};
}

void apply_init_from(Recipe& recipe, const fs::path& recipe_folder) {
  if (!recipe.train.init_from.empty()) {
    const InitSource source = read_init_source(find_source(recipe.train.init_from, recipe_folder));
    Recipe merged = recipe;
    merged.model = source.model;
    merged.model.classes = 0;  // those of the data
    take_keys(merged, recipe, "model.", "train.init_from", source.folder);
    take_keys(merged, recipe, "moe.", "train.init_from", source.folder);
    if (source.model.lora.is_used()) {
      if (!recipe.train.adapter.empty()) {
        recipe.refuse("lora.adapter", source.folder.string() + " has adapters already",
                      "leave it out, or export that model first, which merges them");
      }
      take_keys(merged, recipe, "lora.", "train.init_from", source.folder);
    } else {
      merged.model.lora = recipe.model.lora;
    }
    recipe.model = merged.model;
    recipe.data.task.source_classes = source.tokens.classes;
    check_context(recipe, source);
    recipe.train.init_from = source.folder.string();
    const fs::path tokenizer = source.text / "tokenizer.json";
    std::error_code error;
    if (source.is_huggingface || fs::exists(tokenizer, error)) recipe.data.source_tokenizer = tokenizer.string();
    if (!recipe.locations.contains("data.tokenizer")) recipe.data.tokenizer = tokenizer.string();
  }
  std::string& reference = recipe.data.task.preference.reference;
  if (!reference.empty()) {
    reference = find_source(reference, recipe_folder).string();
    // Of a run its newest checkpoint, so that the reference stays what it is if that run goes on.
    if (std::error_code error; fs::exists(reference, error)) reference = read_init_source(reference).folder.string();
  }
  expect_classes(recipe);
  if (!recipe.train.adapter.empty()) apply_adapter(recipe, recipe_folder);
}

}  // namespace caravan
