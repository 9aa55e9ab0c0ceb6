#include <algorithm>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/text.h"
#include "caravan/formats/huggingface/architectures/architecture_row.h"
#include "caravan/nn/model_fields.h"
#include "caravan/recipe/is_override.h"
#include "caravan/recipe/key_kinds.h"

namespace caravan {
namespace {

using Condition = bool (*)(const ModelConfig& model);

/// When the keys of some settings are used.
struct Use {
  const char* keys;  ///< names, or the beginning of names with a star
  Condition condition;
  const char* reason;
};

bool has_experts(const ModelConfig& model) { return model.moe.is_used(); }
bool rotates(const ModelConfig& model) { return model.arch.rotates(); }
bool scales(const ModelConfig& model) { return model.arch.rotates() && model.rope_scaling.is_used(); }
/// A flag that is on may be switched off.
bool has_shared(const ModelConfig& model) {
  return model.moe.is_used() && (model.moe.has_shared() || model.moe.shared_gate);
}

/// The first that matches a key decides.
constexpr Use kUses[] = {
    {"moe.experts", nullptr, ""},
    {"moe.shared_gate", has_shared, "is used with moe.shared above 0 only"},
    {"moe.balance", [](const ModelConfig& model) { return has_experts(model) && model.moe.balance_loss > 0; },
     "is used with moe.experts and moe.balance_loss above 0 only"},
    {"moe.dense_hidden", [](const ModelConfig& model) { return has_experts(model) && !model.moe.dense_layers.empty(); },
     "is used with moe.dense_layers only"},
    {"moe.*", has_experts, "is used with moe.experts above 0 only"},
    {"model.rope_scaling", rotates, "is used with model.positions = \"rotary\" only"},
    {"model.rope_theta", rotates, "is used with model.positions = \"rotary\" only"},
    {"model.rope_fraction", rotates, "is used with model.positions = \"rotary\" only"},
    {"model.unrotated_layers", rotates, "is used with model.positions = \"rotary\" only"},
    {"model.rope_*", scales, "is used with model.rope_scaling only"},
    {"model.local_rope_theta", [](const ModelConfig& model) { return rotates(model) && model.window > 0; },
     "is used with model.positions = \"rotary\" and model.window above 0 only"},
    {"model.full_layers", [](const ModelConfig& model) { return model.window > 0; },
     "is used with model.window above 0 only"},
    {"model.source_context", [](const ModelConfig& model) { return model.has_encoder(); },
     "is used with model.encoder_layers above 0 only"},
    {"model.bucket*", [](const ModelConfig& model) { return model.arch.positions == Positions::buckets; },
     "is used with model.positions = \"buckets\" only"},
    {"model.head", [](const ModelConfig& model) { return model.classes == 0; }, "is used without model.classes only"},
    {"model.one_norm", [](const ModelConfig& model) { return model.arch.is_parallel || model.arch.has_one_norm; },
     "is used with model.parallel = true only"},
};

bool matches(const Use& use, const std::string& key) {
  const std::string_view keys = use.keys;
  return keys.ends_with('*') ? key.starts_with(keys.substr(0, keys.size() - 1)) : keys == key;
}

/// What a resumed run may do with a key.
OnResume role_of(const ModelField& field) {
  if (field.key == "moe.balance" || field.key == "moe.balance_loss" || field.key == "moe.z_loss")
    return OnResume::listed;
  switch (field.role) {
    case FieldRole::size:
    case FieldRole::shape: return OnResume::shape;
    case FieldRole::function: return OnResume::function;
    case FieldRole::training:
    case FieldRole::history: break;
  }
  return OnResume::history;
}

RecipeKey text_key(KeyName name, const std::string& help, const ModelField::Text& text) {
  const std::string choices = text.choices.empty() ? "" : ": " + join(text.choices);
  return {std::move(name), help + choices,
          [text](const Recipe& recipe) -> RecipeValue { return text.get(recipe.model); },
          [text](Recipe& recipe, const RecipeValue& value) -> std::string {
            const auto* given = std::get_if<std::string>(&value);
            if (given == nullptr) return is_not(value, "a string");
            try {
              return text.set(recipe.model, *given) ? "" : not_one_of(*given, text.choices);
            } catch (const UsageError& error) {
              return fmt::format("{}; {}", error.text().fact, error.text().action);
            }
          }};
}

struct KeyOf {
  const ModelField& field;
  KeyName name{field.key, role_of(field)};

  RecipeKey operator()(FieldAccess<int64_t> access) const {
    return integer(name, field.help, [access](Recipe & recipe) -> auto& { return access(recipe.model); },
                   {field.least, field.most});
  }
  RecipeKey operator()(FieldAccess<double> access) const {
    return real(name, field.help, [access](Recipe & recipe) -> auto& { return access(recipe.model); },
                {field.least, field.most});
  }
  RecipeKey operator()(FieldAccess<bool> access) const {
    return boolean(
        name, field.help, [access](Recipe & recipe) -> auto& { return access(recipe.model); });
  }
  RecipeKey operator()(const ModelField::Text& text) const { return text_key(name, field.help, text); }
};

RecipeKey key_of(const ModelField& field) {
  RecipeKey key = std::visit(KeyOf{field}, field.access);
  const Use* use = std::ranges::find_if(kUses, [&](const Use& each) { return matches(each, field.key); });
  if (use == std::end(kUses) || use->condition == nullptr) return key;
  return only_with(
      std::move(key), [condition = use->condition](const Recipe& recipe) { return condition(recipe.model); },
      use->reason);
}

/// Sets what the recipe does not give itself: a key may stand before or behind the kind.
void apply_architecture(Recipe& recipe, const ArchitectureRow& row) {
  ModelConfig model = recipe.model;
  set_architecture(model, row);
  for (const ModelField& field : model_fields()) {
    if (recipe.locations.contains(field.key)) field.copy(recipe.model, model);
  }
  recipe.model = model;
}

std::vector<std::string> kinds() {
  std::vector<std::string> names;
  for (const ArchitectureRow& row : architectures()) names.push_back(row.name);
  return names;
}

RecipeKey model_kind() {
  return {{"model.kind", OnResume::shape},
          "the architecture, whose settings the other keys change: " + join(kinds()),
          [](const Recipe& recipe) { return RecipeValue{recipe.model.arch.name}; },
          [](Recipe& recipe, const RecipeValue& value) -> std::string {
            const auto* given = std::get_if<std::string>(&value);
            if (given == nullptr) return is_not(value, "a string");
            const ArchitectureRow* row = find_architecture(*given);
            if (row == nullptr) return not_one_of(*given, kinds());
            apply_architecture(recipe, *row);
            return "";
          }};
}

}  // namespace

void forget_architecture(Recipe& recipe) {
  for (const ModelField& field : model_fields()) {
    if (field.is_architecture() && !is_override(recipe, field.key)) recipe.locations.erase(field.key);
  }
}

std::vector<RecipeKey> model_keys() {
  std::vector<RecipeKey> keys{model_kind()};
  for (const ModelField& field : model_fields()) keys.push_back(key_of(field));
  return keys;
}

}  // namespace caravan
