#pragma once

#include <functional>
#include <string>
#include <vector>

#include "caravan/recipe/recipe_key.h"
#include "caravan/registry/registry.h"

namespace caravan {

// The kinds of keys that a recipe has (recipe_keys.cpp).

/// Accesses a field of a recipe, for reading and writing.
template <typename T>
using Field = std::function<T&(Recipe&)>;

RecipeKey integer(KeyName name, std::string help, Field<int64_t> field, Range range);
RecipeKey real(KeyName name, std::string help, Field<double> field, Range range);
RecipeKey boolean(KeyName name, std::string help, Field<bool> field);
RecipeKey text(KeyName name, std::string help, Field<std::string> field);
/// A whole number in `range`, or `word`, which stands for `value_of_word`.
RecipeKey integer_or(KeyName name, std::string help, Field<int64_t> field, Range range, std::string word,
                     int64_t value_of_word);
/// A list of non-empty texts; a single text is a list of one.
RecipeKey texts(KeyName name, std::string help, Field<std::vector<std::string>> field);
/// A text that is one of `choices`.
RecipeKey choice(KeyName name, std::string help, Field<std::string> field, std::vector<std::string> choices);

/// `key`, which is used only if `condition` holds; otherwise giving it is an error with this reason.
RecipeKey only_with(RecipeKey key, std::function<bool(const Recipe&)> condition, std::string reason);

/// The key that chooses an entry of a family, and the keys that its entries read. `setting` is of that family.
std::vector<RecipeKey> family_keys(std::string_view family, const Field<Setting>& setting);

/// `keys`, which are used if the axis has several ranks.
std::vector<RecipeKey> on_axis(std::vector<RecipeKey> keys, const std::string& axis,
                               const std::function<bool(const Recipe&)>& is_used);

/// The keys of a family that splits layers or sequences.
std::vector<RecipeKey> split_keys(std::string_view family, const Field<Split>& split);

/// The keys of the model and its experts, one for each of model_fields() that is one.
std::vector<RecipeKey> model_keys();
/// Before an override of model.kind: what the file says of the settings of its architecture gives way to the new one.
void forget_architecture(Recipe& recipe);
/// The keys of data, dtypes, mesh, data parallelism and memory, and pipelines.
std::vector<RecipeKey> data_keys();
std::vector<RecipeKey> preference_keys();
std::vector<RecipeKey> precision_keys();
std::vector<RecipeKey> parallel_keys();
std::vector<RecipeKey> pipeline_keys();
/// The keys of adapters.
std::vector<RecipeKey> lora_keys();

}  // namespace caravan
