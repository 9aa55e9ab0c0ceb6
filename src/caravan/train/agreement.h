#pragma once

#include <string_view>
#include <vector>

#include "caravan/comm/calls/same.h"
#include "caravan/recipe/recipe_key.h"
#include "caravan/train/dataset/dataset.h"

namespace caravan {

struct TrainOptions;

/// The keys of the recipe that must be the same on all ranks (AcrossRanks).
std::vector<SharedFact> recipe_facts(const Recipe& recipe);

/// What must be the same on all ranks before the first collective that depends on it: the recipe, except keys that may
/// differ, the options of the command, and the build of the program.
std::vector<SharedFact> start_facts(const Recipe& recipe, const TrainOptions& options);

/// The same for the data: tokenizer and token files, by content. Paths may differ.
std::vector<SharedFact> data_facts(const Dataset& dataset);

/// The recipe in the form in which two recipes are compared: unused keys are left out.
std::vector<const RecipeKey*> meaningful_keys(const Recipe& recipe);

/// Throws UsageError (exit code 2), naming the first key that differs and both values, unless `found` is empty.
void refuse_different_start(const std::optional<Disagreement>& found);
/// The same as a DataError (exit code 3).
void refuse_different_data(const std::optional<Disagreement>& found);
/// Compares the data_facts of all ranks. Every rank calls it. Throws as refuse_different_data, with this rank's path of
/// a streamed file that differs.
void check_same_data(Communicator& world, const Dataset& dataset);

/// Identifies the build of this program: its build id, or its version if there is none.
std::string program_build();

}  // namespace caravan
