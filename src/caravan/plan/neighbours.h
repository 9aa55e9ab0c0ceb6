#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "caravan/recipe/recipe.h"
#include "caravan/registry/key.h"
#include "caravan/registry/setting.h"

namespace caravan {

/// A recipe that differs in one choice.
struct Neighbour {
  std::string choice;  ///< "mesh.tp=2"
  Recipe recipe;       ///< with a number of sequences in a micro-batch: those of the first, if they divide its rows
};

/// The recipe as it is used on `num_ranks` ranks: keys that its choices do not read have their defaults. Throws
/// UsageError if it is not legal.
Recipe legal_recipe(const Recipe& recipe, int num_ranks);
/// That of the recipe with other values of some keys; nothing if it is not legal.
std::optional<Recipe> changed_recipe(const Recipe& recipe, const std::vector<std::pair<std::string, RecipeValue>>& keys,
                                     int num_ranks);

/// Whether some degrees of tensor parallelism and of stages are legal, with the sequences and experts of the recipe
/// split as they are or not at all, and with its micro-batch or another one.
bool has_legal_degrees(const Recipe& recipe, int num_ranks);

/// The values of a key that a search tries: all if they are few, and numbers of ranks where the entry proposes one.
struct KeyValues {
  std::vector<RecipeValue> choices{};
  std::vector<int64_t> ranks{};  ///< ascending
};
KeyValues values_of(const Setting& setting, const SettingKey& key, int64_t ranks);

/// Whether a step with this choice is that of one process, and a rehearsal knows it.
bool is_exact(const Setting& setting);

/// The legal neighbours of the recipe on `num_ranks` ranks: other techniques, other values of their keys (values_of),
/// twice and half the ranks of an axis that splits the model, other kinds of splitting, what is recomputed, each kind
/// of memory on the host, the nearest micro-batches that divide the rows. `is_auto`: its micro-batch was "auto".
std::vector<Neighbour> neighbours(const Recipe& recipe, int num_ranks, bool is_auto);

}  // namespace caravan
