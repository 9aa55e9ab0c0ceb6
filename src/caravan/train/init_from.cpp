#include "caravan/train/init_from.h"

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/file.h"
#include "caravan/checkpoint/manifest.h"
#include "caravan/nn/config_text.h"
#include "caravan/train/recipe_key.h"
#include "caravan/train/recipe_roles.h"

namespace caravan {
namespace {

namespace fs = std::filesystem;

/// Whether a model with other values of this key can take the same weights and computes the same function of a text.
bool may_differ(const std::string& key) {
  const OnResume role = role_of(key).on_resume;
  return key == "model.context" || (role != OnResume::shape && role != OnResume::function);
}

/// GPT-2 has a learned vector for each position.
void check_context(const Recipe& recipe, const InitSource& source) {
  if (source.model.kind != ModelKind::gpt2 || recipe.model.context <= source.model.context) return;
  recipe.refuse("model.context",
                fmt::format("{} tokens, but {} has learned {} positions", recipe.model.context, source.folder.string(),
                            source.model.context),
                fmt::format("use at most {}", source.model.context));
}

}  // namespace

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
            .model = parse_huggingface_config(json.text(), config.string()),
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
  std::error_code error;
  fs::path path = fs::absolute(recipe.train.init_from, error).lexically_normal();
  if (!fs::exists(path, error) && !recipe_folder.empty()) {
    path = fs::absolute(recipe_folder / recipe.train.init_from, error).lexically_normal();
  }
  if (path.filename().empty()) path = path.parent_path();  // "runs/a/"
  const InitSource source = read_init_source(path);
  Recipe merged = recipe;
  merged.model = source.model;
  for (const RecipeKey& key : recipe_keys()) {
    const bool is_of_model = key.name.starts_with("model.") || key.name.starts_with("moe.");
    if (!is_of_model || !recipe.locations.contains(key.name)) continue;
    const RecipeValue given = key.get(recipe);
    const RecipeValue found = key.get(merged);
    if (given == found) continue;
    if (!may_differ(key.name)) {
      recipe.refuse(key.name,
                    fmt::format("is {}, but that of {} is {}", to_toml(given), source.folder.string(), to_toml(found)),
                    "leave it out: train.init_from gives it");
    }
    key.set(merged, given);
  }
  recipe.model = merged.model;
  check_context(recipe, source);
  recipe.train.init_from = source.folder.string();
  if (!recipe.locations.contains("data.tokenizer")) recipe.data.tokenizer = (source.text / "tokenizer.json").string();
}

}  // namespace caravan
