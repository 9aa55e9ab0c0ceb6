#pragma once

#include <string>
#include <vector>

#include "apps/caravan/options.h"
#include "caravan/train/recipe.h"

namespace caravan::app {

/// A recipe that differs in one choice.
struct Neighbour {
  std::string choice;  ///< "mesh.tp=2"
  Recipe recipe;       ///< with a number of sequences in a micro-batch: those of the first, if they divide its rows
};

/// The legal ones of the recipe that `arguments` name on `num_ranks` ranks: other techniques and where they accumulate,
/// twice and half the ranks of an axis that splits the model, other kinds of splitting, what is recomputed, twice and
/// half the micro-batch. `recipe` is that recipe with its micro-batch.
std::vector<Neighbour> neighbours(const InspectArguments& arguments, const Recipe& recipe, int num_ranks);

}  // namespace caravan::app
