#pragma once

#include <string>
#include <vector>

#include "caravan/plan/predict.h"
#include "caravan/plan/search.h"
#include "caravan/recipe/recipe.h"

namespace caravan {

/// Sentences about the hardware of a search, beside those of advice_of: the three below that have something to say.
std::vector<std::string> hardware_advice(const Recipe& recipe, const SearchResult& result, const Predictor& predictor);

// Each returns "" if there is nothing to say.

/// If the recipe, or the best layout without what the fastest one has, waits for links between hosts: what it sends
/// over them in a step, in elements, bytes and seconds, and what the fastest layout sends.
std::string link_advice(const SearchResult& result, const Predictor& predictor);

/// If devices differ and the fast ones alone are faster than all: by how much. Layouts of the search are estimated
/// there, by HardwareCosts, with fewer data-parallel ranks.
std::string device_advice(const SearchResult& result, const Predictor& predictor);

/// If no layout of the recipe is legal on `num_ranks` ranks: the nearest numbers of ranks and the nearest
/// train.global_batch for which some are.
std::string legal_advice(const Recipe& recipe, int num_ranks);

}  // namespace caravan
