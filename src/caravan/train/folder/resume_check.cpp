#include "caravan/train/folder/resume_check.h"

#include <fmt/format.h>

#include "caravan/base/differing_texts.h"
#include "caravan/base/error.h"
#include "caravan/base/text.h"
#include "caravan/formats/huggingface/config_text.h"
#include "caravan/nn/model_fields.h"
#include "caravan/recipe/recipe_key.h"
#include "caravan/train/dataset/dataset.h"
#include "caravan/train/dataset/dataset_parts.h"

namespace caravan {
namespace {

constexpr const char* kOwnRecipe = "resume with the recipe.toml of that run, or start a new run";

/// The first setting of the model in which `run` differs from `before`; "" for none.
std::string difference(const ModelConfig& of_checkpoint, const ModelConfig& of_run) {
  const ModelConfig before = resolved(of_checkpoint), run = resolved(of_run);
  if (before.arch.name != run.arch.name && before.arch != run.arch) {
    return fmt::format("model.kind is {} there, {} in this run", before.arch.name, run.arch.name);
  }
  for (const ModelField& field : model_fields()) {
    const bool is_of_tensors = field.role == FieldRole::size || field.role == FieldRole::shape;
    if (!is_of_tensors || field.is_same(before, run)) continue;
    return fmt::format("{} is {} there, {} in this run", field.key, field.text_of(before), field.text_of(run));
  }
  if (before.lora.rank != run.lora.rank || (run.lora.is_used() && before.lora.targets != run.lora.targets)) {
    return fmt::format("lora has rank {} and targets {} there, {} and {} in this run", before.lora.rank,
                       join(before.lora.targets), run.lora.rank, join(run.lora.targets));
  }
  if (before.moe.is_used() && before.lora.is_used() && before.lora.experts != run.lora.experts) {
    return fmt::format("lora.experts is {} there, {} in this run", before.lora.experts, run.lora.experts);
  }
  if (before.lora.dora != run.lora.dora) {
    return fmt::format("lora.dora is {} there, {} in this run", before.lora.dora, run.lora.dora);
  }
  if (before.lora.saved != run.lora.saved) {
    return fmt::format("lora.modules_to_save is [{}] there, [{}] in this run", join(before.lora.saved),
                       join(run.lora.saved));
  }
  return "";
}

void check_model(const CheckpointInfo& info, const std::string& folder, const ModelConfig& model) {
  const std::string what = difference(parse_config_text(info.model, folder), model);
  if (what.empty()) return;
  throw DataError({"resume", folder, "is of another model: " + what, "", kOwnRecipe});
}

/// Weights without a step of training (imported ones, say) have no history that another seed or text could contradict.
bool has_history(const CheckpointInfo& info) { return info.optimizer_steps > 0; }

/// Streaming visits the same text in another order. Its hash, and a tokenizer trained on its beginning, differ as well.
void check_streaming(const CheckpointInfo& info, const Recipe& before, const ResumingRun& run) {
  const bool now = run.recipe.data.streaming;
  if (!has_history(info) || before.data.streaming == now) return;
  throw UsageError({"resume", "data.streaming",
                    fmt::format("is {}, but the run was trained with {}", now, before.data.streaming),
                    run.recipe.where("data.streaming"), kOwnRecipe});
}

void check_data(const CheckpointInfo& info, const Recipe& before, const ResumingRun& run) {
  const bool are_trained = before.data.tokenizer.empty() && run.recipe.data.tokenizer.empty();
  const bool train_alike = are_trained && before.data.trained_vocabulary == run.recipe.data.trained_vocabulary;
  if (info.tokenizer_hash != run.tokenizer_hash && train_alike) {
    throw UsageError(
        {"resume", "data.text",
         fmt::format("differs from the text that the run's tokenizer was trained on (data.tokenizer = "
                     "{{train = {}}}): {}, then {}",
                     before.data.trained_vocabulary, join(text_paths(run.recipe.data)), join(text_paths(before.data))),
         run.recipe.where("data.text"), "use the same data.text, or the tokenizer.json of that run"});
  }
  if (info.tokenizer_hash != run.tokenizer_hash) {
    throw UsageError({"resume", "data.tokenizer",
                      fmt::format("is another tokenizer (hash {}) than the run was trained with (hash {})",
                                  run.tokenizer_hash, info.tokenizer_hash),
                      run.recipe.where("data.tokenizer"), "use the tokenizer.json of that run"});
  }
  const bool is_known = !info.train_hash.empty();
  const bool is_same = info.train_hash == run.train_hash && info.validation_hash == run.validation_hash;
  if (!has_history(info) || !is_known || is_same) return;
  const std::vector<std::string>&classes = run.recipe.data.task.classes, &of_run = before.data.task.classes;
  if (classes != of_run && text_paths(run.recipe.data) == text_paths(before.data)) {
    throw UsageError(
        {"resume", "data.classes",
         fmt::format("are other classes than the run was trained with: [{}], then [{}]", join(classes), join(of_run)),
         run.recipe.where("data.classes"), "leave it out"});
  }
  if (info.train_hash == run.train_hash) {
    const bool is_own = !run.recipe.data.validation.empty();
    throw UsageError({"resume", is_own ? "data.validation" : "data.validation_fraction",
                      fmt::format("gives another text for validation (hash {}) than the run had (hash {})",
                                  run.validation_hash, info.validation_hash),
                      run.recipe.where(is_own ? "data.validation" : "data.text"),
                      "use the same text; to validate its model on another one: caravan evaluate"});
  }
  const double fraction = validation_part(run.recipe.data), of_before = validation_part(before.data);
  if (fraction != of_before && text_paths(run.recipe.data) == text_paths(before.data)) {
    const bool is_own = run.recipe.data.validation != before.data.validation;
    const std::string key = is_own ? "data.validation" : "data.validation_fraction";
    throw UsageError(
        {"resume", key,
         fmt::format("leaves another part of the text for training: {} of it is for validation now, and {} was "
                     "when the run was trained",
                     fraction, of_before),
         run.recipe.where(key), kOwnRecipe});
  }
  throw UsageError(
      {"resume", "data.text",
       fmt::format("is another text than the run was trained on: {} (hash {}), then {} (hash {})",
                   join(text_paths(run.recipe.data)), run.train_hash, join(text_paths(before.data)), info.train_hash),
       run.recipe.where("data.text"), "use the same text; to train its model on another one: export it, import that"});
}

}  // namespace

std::string ChangedKey::to_string() const {
  const DifferingTexts shown = differing_texts(now, before);
  return fmt::format("{} is {}, before the resume it was {}", name, shown.first, shown.other);
}

std::vector<ChangedKey> check_resumed_run(const CheckpointInfo& info, const std::string& folder,
                                          const ResumingRun& run) {
  check_model(info, folder, run.model);
  const Recipe before = parse_recipe(info.recipe, folder, {}, RecipeWriter::run);
  check_streaming(info, before, run);
  check_data(info, before, run);
  std::vector<ChangedKey> changed;
  for (const RecipeKey& key : recipe_keys()) {
    const OnResume role = key.on_resume;
    const bool is_fixed = role == OnResume::function || (role == OnResume::history && has_history(info));
    const bool is_compared = is_fixed || role == OnResume::listed || role == OnResume::history;
    if (!is_compared || !key.idle(before).empty() || !key.idle(run.recipe).empty()) continue;
    ChangedKey values{key.name, to_toml(key.get(before)), to_toml(key.get(run.recipe))};
    if (values.before == values.now) continue;
    if (is_fixed) {
      throw UsageError({"resume", key.name,
                        fmt::format("is {}, but the run was trained with {}", values.now, values.before),
                        run.recipe.where(key.name), kOwnRecipe});
    }
    if (has_history(info)) changed.push_back(std::move(values));
  }
  return changed;
}

}  // namespace caravan
