#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "caravan/recipe/recipe.h"

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

/// Whether some degrees of tensor parallelism and of stages are legal, with the other choices of the recipe.
bool has_legal_degrees(const Recipe& recipe, int num_ranks);

/// Whether a step with this choice is that of one process, and a rehearsal knows it.
bool is_exact(const Setting& setting);

/// The legal neighbours of the recipe on `num_ranks` ranks: other techniques, other values of their keys with few
/// choices, twice and half the ranks of an axis that splits the model, other kinds of splitting, what is recomputed,
/// each kind of memory on the host, twice and half the micro-batch. `is_auto`: its micro-batch was "auto".
std::vector<Neighbour> neighbours(const Recipe& recipe, int num_ranks, bool is_auto);

}  // namespace caravan
