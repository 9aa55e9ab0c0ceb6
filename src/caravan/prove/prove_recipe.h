#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "caravan/base/trace/path_log.h"
#include "caravan/comm/communicator.h"
#include "caravan/prove/prove.h"
#include "caravan/recipe/recipe.h"

namespace caravan {

/// The result of prove_recipe.
struct RecipeProof {
  struct Part {
    std::string why{};  ///< "as the recipe says", "at dropout 0, as evaluations run", "all_reduce by ring"
    ProveCase what{};
    Proof proof{};
  };
  /// The steps that the paths are compared with: one, or with train.micro_batch = "auto" those with the largest and
  /// with the smallest micro-batches that it may choose.
  std::vector<ProveCase> own_steps{};
  PathCounts own_paths{};  ///< the paths that they executed, on all ranks together
  /// Algorithms of their collectives that the recipe may take on its own axes, at other sizes: "gloo all_reduce by
  /// ring".
  std::vector<std::string> algorithms{};
  std::vector<Part> parts{};           ///< up to the first that does not hold
  std::vector<std::string> missing{};  ///< paths of the recipe's own steps, and algorithms, that no part has executed

  PathCounts paths() const;  ///< of all parts
  bool holds() const;
  /// "ring attention of own block 16, fused attention 8".
  static std::string to_string(const PathCounts& paths);
};

/// The paths in `own` that `proved` does not have.
std::vector<std::string> missing_paths(const PathCounts& own, const PathCounts& proved);

struct RecipeProofOptions {
  /// Planted faults: see ProveCase.
  std::map<std::string, double, std::less<>> planted{};
  /// Memory of all ranks together, for the step at the recipe's own sizes.
  int64_t memory_bytes = int64_t{4} << 30;
  /// Called on every rank after each part.
  std::function<void(const RecipeProof::Part& part)> observe{};
};

/// Proves a recipe: compares it at a small size (proof_recipe) with one process, with its own dropout, and if it has
/// dropout also at 0.1 and at 0, and if it computes in 16 bits first in fp32; with an optimizer that is not
/// element-wise also in fp64, with that optimizer. Where a difference may be rounding, up to three other sets of values
/// are tried, one of which has to hold. Then runs one step at its own sizes with random tokens and weights and counts
/// the paths that it takes (own_step_recipe). If no proof has taken some of these paths, it proves the recipe again so
/// that they are taken; likewise for each algorithm of a collective that the table may choose on the recipe's own axes.
/// `missing` lists what is still not taken, and then the proof does not hold.
///
/// Every rank of `world` calls it, which has as many ranks as proof_recipe(recipe), and gets the same result. Needs
/// neither data nor the weights that the recipe starts from. Throws as prove.
RecipeProof prove_recipe(const Recipe& recipe, const std::shared_ptr<Communicator>& world,
                         const RecipeProofOptions& options = {});

}  // namespace caravan
