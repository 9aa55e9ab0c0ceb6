#pragma once

#include <set>
#include <string>
#include <vector>

#include "caravan/plan/prediction.h"

namespace caravan {

/// A layout as sentences compare it, of a recipe or a program.
struct ComparedLayout {
  std::string text;
  Prediction prediction;
  std::set<std::string> features{};  ///< "pipeline stages", "zero1"
};

/// What the best layout gains by each of `features` that it has or has not, beside the best of the estimated layouts
/// without or with it; if it does not fit, what the least ones need. Both lists have the best first, and are not empty.
std::vector<std::string> sentences_of(const std::vector<ComparedLayout>& best,
                                      const std::vector<ComparedLayout>& estimated,
                                      const std::vector<std::string>& features, int num_ranks);

}  // namespace caravan
