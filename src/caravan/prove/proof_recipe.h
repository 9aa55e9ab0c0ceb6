#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "caravan/recipe/recipe.h"
#include "caravan/train/dataset/dataset.h"

namespace caravan {

// The sizes at which `prove` runs a recipe. Each is a complete recipe, so that it goes through the same code as a run:
// checks, batch plan, strategy, mesh. Without libtorch, since the launcher asks for the number of ranks.

/// Up to this number of ranks, degrees are kept; above it, degrees above 3 become 2.
inline constexpr int64_t kMostProvedRanks = 8;

/// load_recipe for a proof, which needs neither data nor weights: if train.init_from or train.adapter is missing, the
/// recipe's own sizes are used, and `note` says so.
Recipe load_recipe_to_prove(const std::filesystem::path& file, const std::vector<std::string>& overrides,
                            std::string& note);

/// The same kind of model with 2 layers of width 16, 4 heads (grouped as in `model`), 5 to 8 positions and 23 tokens.
/// The dropout is kept.
ModelConfig shrunken(const ModelConfig& model);

/// The recipe at a size at which every element of every tensor can be compared: its model shrunken, its mesh unchanged
/// (see kMostProvedRanks), or 2 ranks (or 2 groups of shards) if it has none; at most 3 micro-batches; as many tokens
/// in a micro-batch as the kernels of the recipe's own sizes need; as many layers as its named modules or stages need.
/// Switches that decide what is executed (overlap, share, accumulate, prefetch, recompute, precision, back-end,
/// dropout) are kept. Buckets of gradients shrink with the model. `tokens`: in a micro-batch of a rank; 0: as its own
/// sizes need. Throws UsageError as plan_batch, and for schedules that compute with the weights of earlier steps.
Recipe proof_recipe(const Recipe& recipe, int64_t tokens = 0);

/// The recipe at its own width, heads, vocabulary, context and batch, on the mesh of proof_recipe: what one step of a
/// run executes on each rank. Repetitions are cut: layers of a stage, micro-batches, and sequences beyond 1,280 tokens;
/// if that does not fit, also vocabulary, context and heads.
Recipe own_step_recipe(const Recipe& recipe, const std::function<bool(const Recipe&)>& fits);
/// The same for ranks that have `memory_bytes` together, by rehearsals. With libtorch.
Recipe own_step_recipe(const Recipe& recipe, int64_t memory_bytes);

/// The recipe in fp32; without delayed updates, if layers would then read what the optimizer writes.
Recipe in_fp32(Recipe recipe);

/// The recipe, and with train.micro_batch = "auto" also the recipe with the smallest micro-batches: their number
/// depends on the memory of the ranks, and a run of one micro-batch takes other paths than one of several.
std::vector<Recipe> variants_of_batch(const Recipe& recipe);

/// The sizes above 1 of the groups of ranks in which collectives of the recipe run: of its axes, of its groups of
/// shards, and of all ranks.
std::set<int> group_sizes(const Recipe& recipe);

/// Sets model.vocabulary to that of data.tokenizer if this is a file. If the file is missing, adds a line to `note`.
void take_vocabulary(Recipe& recipe, const DataFolders& folders, std::string& note);

/// What one process cannot repeat, so that a proof leaves it out: gradients that are rounded or compressed when sent.
/// "hook powersgd", "gradients in bf16".
std::vector<std::string> left_out_of_proof(const Recipe& recipe);

}  // namespace caravan
