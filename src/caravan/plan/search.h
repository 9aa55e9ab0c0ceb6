#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "caravan/plan/predict.h"
#include "caravan/recipe/recipe.h"

namespace caravan {

/// A legal recipe of the same model, batch and arithmetic, and what to expect of it.
struct PlannedLayout {
  Recipe recipe;
  std::string text;  ///< see layout_text
  Prediction prediction;
  bool is_whole = false;  ///< of a whole rehearsal; else an estimate
};

/// "pp 2 (1f1b) x dp 4, zero1, recompute full, 8 x 2 sequences" (micro-batches and their size): what a search may
/// choose.
std::string layout_text(const Recipe& recipe, int num_ranks);

struct SearchOptions {
  double seconds = 20;    ///< of processor time, for estimates; half as much more for whole rehearsals, but for one
  size_t most_rows = 10;  ///< that are rehearsed whole
  /// Called between estimates with their number; may be empty.
  std::function<void(size_t num_estimated)> progress{};
  /// Layouts that may be chosen beside the recipe's; empty: all.
  std::function<bool(const Recipe&)> allows{};
};

struct SearchResult {
  /// The fastest that fit, the fastest first; if none fits, those that need the least memory. Each is rehearsed whole.
  std::vector<PlannedLayout> best{};
  /// The recipe as it is, rehearsed whole; absent if it cannot run on these ranks: then why.
  std::optional<PlannedLayout> own{};
  std::string own_error{};
  size_t num_counted = 0;                  ///< roughly, by sketches
  std::vector<PlannedLayout> estimated{};  ///< the best of these, and neighbours
  bool is_complete = true;                 ///< false: time was up
  bool fits() const noexcept { return !best.empty() && best.front().prediction.fits(); }
};

/// Searches the layouts of a recipe: degrees of all axes, technique, kinds of splits, schedule, micro-batches,
/// recomputation and offload to the host; all that the registry has and that computes the gradient of one process.
/// Sketches (plan/sketch.h) count all degrees, techniques, schedules, micro-batches, with and without recomputation.
/// The most promising are estimated; from the best of them and the recipe the search goes on to the best neighbour
/// until none is better. Last, layers of promising layouts are cut and recomputed one by one (refined_layouts).
SearchResult search_layouts(const Recipe& recipe, const Predictor& predictor, const SearchOptions& options = {});

/// Sentences with numbers, each the difference of two layouts of a search.
std::vector<std::string> advice_of(const SearchResult& result, int num_ranks);

}  // namespace caravan
