#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "caravan/base/trace/path_log.h"
#include "caravan/comm/communicator.h"
#include "caravan/engine/strategy.h"
#include "caravan/mesh/mesh.h"
#include "caravan/models/model.h"
#include "caravan/nn/loss/preference_loss.h"
#include "caravan/prove/proof_recipe.h"
#include "caravan/schedule/row_deal.h"

namespace caravan {

class Optimizer;
struct FlatState;
struct Recipe;

/// A strategy, and what it installed on the model (hooks, an AppliedPlan), which is kept as long as the model runs.
struct Arrangement {
  Arrangement(Strategy of, std::shared_ptr<void> kept = {})  // NOLINT: most strategies need nothing else
      : strategy(std::move(of)), keep(std::move(kept)) {}
  Strategy strategy;
  std::shared_ptr<void> keep;
};

/// A case that prove compares with one process.
struct ProveCase {
  std::string name{};   ///< name of the arrangement, for to_string()
  ModelConfig model{};  ///< a small model: every element of every tensor is compared
  std::vector<AxisSize> axes{};
  /// Arranges a model without memory, on every rank of a mesh of these axes, to which it may add others. The strategy's
  /// compute_dtype becomes compute_dtype.
  std::function<Arrangement(Model& model, Mesh& mesh)> arrange{};
  int num_micro_batches = 1;
  int64_t rows = 0;            ///< sequences in a step, over all ranks; 0: 2 per rank and micro-batch
  RowDeal deal{};              ///< of these sequences, to the data-parallel ranks
  bool has_documents = false;  ///< a sequence is packed from documents of 1 to 5 tokens
  /// Rows are pairs of sequences, with this loss and random numbers of a reference model.
  std::optional<PreferenceSettings> preference{};
  at::ScalarType dtype = at::kDouble;         ///< dtype of sharded parameters: fp64; fp32, also for bf16
  at::ScalarType compute_dtype = at::kFloat;  ///< as Strategy::compute_dtype; kFloat: that of the sharded parameters
  std::optional<double> tolerance{};          ///< largest relative error; nothing: depends on the dtypes
  int num_steps = 3;
  double lr = 0.5;
  /// What updates the parameters, in one process too; empty: SGD, after which an update tells of every element of a
  /// gradient how large it is.
  std::function<std::unique_ptr<Optimizer>(FlatState& state)> optimizer{};
  std::string optimizer_name = "SGD";
  double clip_norm = 0.5;  ///< below the norms of the models of shrunken(), so that every step clips
  uint64_t seed = 1;
  /// A step does not see the update before it: neither on the ranks, whose strategy says so, nor in the one process.
  bool delays = false;
  /// False: find only wrong factors, not missing summands, because another case with the same arrangement finds these.
  /// In 16 bits rounding hides one summand of many.
  bool finds_summands = true;
  /// A fault: the ranks multiply what these paths compute by these factors (PathLog). A proof that still holds does not
  /// cover these paths.
  std::map<std::string, double, std::less<>> planted{};

  /// "ddp on dp=2: gpt2 with tied embeddings, .."
  std::string to_string() const;
};

/// The result of prove.
struct Proof {
  struct Step {
    double loss = 0;  ///< loss of one process
    double grad_norm = 0;
    double largest_error = 0;
    std::string worst{};  ///< where the largest error is: "gradient of head.norm.weight"
    std::string to_string() const;
  };
  struct Difference {
    std::string what{};   ///< "loss", "gradient of blocks.0.mlp.up.weight"
    int step = 0;         ///< from 0
    std::string where{};  ///< "rank 1 of 2 (dp=1)"
    double error = 0;
    std::optional<double> factor{};  ///< k, if it is k times that of one process
    int num_others = 0;              ///< number of further tensors that differ in the same step: gradients, if it is
                                     ///< one or the loss
    std::string tensor{};            ///< the first of these: "gradient of blocks.1.mlp.up.weight"
    /// "is 2.000 times that of one process", "differs from that of one process by 34 % of its norm".
    std::string fact() const;
    /// ", and 12 more differ"; for a loss also which gradient is the first.
    std::string others() const;
  };

  int num_ranks = 0;
  int num_parameters = 0;
  double tolerance = 0;
  std::vector<Step> steps{};          ///< up to the first difference
  PathCounts paths{};                 ///< what all ranks together executed
  std::optional<Difference> first{};  ///< in the order of the comparison
  std::string doubt{};                ///< not empty: why no fault can be told from rounding; prove() then throws

  bool holds() const noexcept { return !first.has_value(); }
  double largest_error() const noexcept;
  /// One line: what was compared, or the first difference.
  std::string to_string() const;
};

/// Trains a model for some steps of clipped SGD as `what` arranges it, on ranks that are threads of this process, and
/// on one rank without a technique, and compares everything. For tests and authors of techniques.
///
/// All parameters start from random values, biases too, since zeros hide faults; row r of the batch has r % 5 tokens
/// without a target. Compares on every rank, tensor by tensor in model order: the initial values, bitwise; then for
/// each step the loss, the gradients before clipping, their norm, and the parameter updates. The error is |a - b| /
/// (|b| + floor) in 2-norms, with b of one process. The floor is 1 % of the largest gradient (by the mean of its
/// elements), and 100 % of it for a gradient that is zero except for rounding; the same for updates.
///
/// Tolerances:
///   fp64  1e-10
///   fp32  2e-5: the same sums in another order. Measured: up to 7e-6
///   bf16  2e-5: one process runs the micro-batches that the ranks run, whose roundings are then the same. Every step
///         starts from new values: weights that differ in the last bit of fp32 may be rounded apart, and then gradients
///         differ by several per cent. Where the arrangement splits weights or sequences, other numbers are rounded:
///         2^-8 times the square root of their count, 4e-2, with adapters 4.6e-2; or 1.5 times what one process in
///         16 bits differs from itself in fp32, if that is more and still shows every fault. Measured: up to 5.4e-2,
///         where one process is 3e-2 to 6e-2 from fp32 (llama under tp 2). With attention=native half as much again,
///         and less by as much for tenfold below. For few summands: prove it in fp64 and fp32 too
///   fp16  as bf16, with roundings of 2^-11 and a loss scale of 1024
/// A tolerance is valid only if a factor of 1/2 in any gradient (2 is a larger error) and a missing summand (a
/// micro-batch of a rank) exceed it tenfold; without finds_summands, if a factor of 1/2 exceeds it fivefold. If a
/// tolerance above is invalid, the largest valid one is used instead.
///
/// Throws UsageError for an impossible case, for an invalid tolerance that is given, and for a difference above the
/// largest valid one that rounding explains; what the arrangement throws; CommError if a
/// rank waits for 60 s.
Proof prove(const ProveCase& what);

/// The same on the ranks of `world`, of any back-end, as many as the product of the axes. Every rank calls it and gets
/// the same proof; rank 0 compares.
Proof prove(const ProveCase& what, const std::shared_ptr<Communicator>& world);

/// What one step of the case executes on all ranks together, starting from a new model. Every rank of `world` calls it.
PathCounts paths_of_step(const ProveCase& what, const std::shared_ptr<Communicator>& world);

/// Makes a case of a recipe whose sizes fit (proof_recipe, own_step_recipe), without what left_out_of_proof names.
ProveCase case_of_recipe(const Recipe& recipe);

/// The same in fp64 with the recipe's optimizer: for one that is not element-wise, and so depends on layouts. It would
/// enlarge roundings of gradients in fp32 beyond the tolerance.
ProveCase case_of_optimizer(const Recipe& recipe);

/// Makes a case of any recipe: case_of_recipe of its proof_recipe.
ProveCase prove_case(const Recipe& recipe);

}  // namespace caravan
