#pragma once

#include <optional>

#include "caravan/engine/strategy.h"
#include "caravan/registry/setting.h"
#include "caravan/registry/split.h"
#include "caravan/schedule/pipeline_choice.h"
#include "caravan/techniques/precision_choice.h"

namespace caravan {

/// A recipe's choices of parallelism.
struct StrategyChoice {
  Setting data_parallel{"data_parallel"};
  Setting hook{"hook"};
  Split tensor_parallel{Setting("tensor_parallel")};
  Split context_parallel{Setting("context_parallel")};
  Split expert_parallel{Setting("expert_parallel")};
  PipelineChoice pipeline{};
  std::vector<int> stage_of_block{};    ///< stage of each of model.blocks(); empty: cut evenly
  int64_t sequences = 1;                ///< sequences of a micro-batch of one data-parallel rank, which are split
  bool has_equal_micro_batches = true;  ///< all micro-batches of a run have `sequences`
  at::ScalarType compute_dtype = at::kFloat;
  at::ScalarType gradient_dtype = at::kFloat;
  std::optional<at::ScalarType> reduce_dtype{};
  Setting tiling{"tiling"};
  Setting recompute{"recompute"};
  Setting offload{"offload"};
  Setting chunks{"chunks"};
  bool waits_for_norm = false;  ///< updates wait for the gradient of the whole model: clipping, a loss scale
  bool keeps_frozen = false;    ///< gathered frozen parameters stay (Strategy::keeps_frozen)
  bool overlap = true;          ///< communication of split layers overlaps computation (DeferredWork::set_overlaps)
};

/// Sets the dtypes of a choice. Throws UsageError for a name that is not a dtype.
void set_dtypes(StrategyChoice& choice, const PrecisionChoice& precision);

/// The strategy of the chosen techniques, in the order of their phases: axes of the mesh are factored, layers are
/// split, blocks are cut into stages, layers into tiles, parameters are sharded, modules are recomputed. `mesh` has an
/// axis dp, and pp, ep, cp and tp where these degrees are above 1; it may get further ones. Every rank calls it.
///
/// Layers of a Model of this library are split by the tables of tensor_1d, its relatives, context_parallel and
/// expert_parallel; for another module, apply your own Plan. Throws UsageError, naming the nearest valid choice, for
/// techniques that exclude each other (registry/compose.h) or do not fit the mesh, and as apply and add_recompute.
Strategy make_strategy(const StrategyChoice& choice, Module& model, Mesh& mesh);

}  // namespace caravan
