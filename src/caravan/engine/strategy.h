#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "caravan/engine/bucket_bytes.h"
#include "caravan/engine/chunks.h"
#include "caravan/engine/gradients/comm_hook.h"
#include "caravan/engine/kept_memory.h"
#include "caravan/memory/tiers.h"
#include "caravan/mesh/mesh.h"
#include "caravan/module/plan/plan.h"
#include "caravan/schedule/schedule.h"

namespace caravan {

/// How many ranks run a model, as data: each technique is a function that changes some of it, and an Engine executes
/// it. Techniques compose by changing the same strategy one after another: a tensor plan, pipeline stages, data
/// parallelism.
struct Strategy {
  std::string name;  ///< names of the techniques, for messages: "ddp"

  /// A module whose forward and backward are events of the table; units are in forward order, a parent before the units
  /// inside it. Every parameter belongs to a unit.
  struct Unit {
    Module* module = nullptr;
    int stage = 0;
    bool is_recomputed = false;
    bool moves_activations = false;  ///< they are in activations_tier between its forward and its backward
  };
  std::vector<Unit> units;

  /// Layouts of every parameter, on every axis of the mesh (sharded: I or S; unsharded: R where a data axis owes the
  /// gradient).
  std::map<std::string, ParameterLayouts> layouts;

  /// Dtype of the unsharded parameters; kFloat: that of the sharded ones, of any dtype. bf16, fp16: sharded parameters
  /// are fp32, and layers compute in this.
  at::ScalarType compute_dtype = at::kFloat;
  /// Dtype of the kept gradients; kFloat: that of the sharded parameters. bf16: the gradients of one micro-batch
  /// accumulate in fp32 and are rounded when their group is complete.
  at::ScalarType gradient_dtype = at::kFloat;
  /// Dtype in which gradients are reduced; none: the dtype in which they are kept.
  std::optional<at::ScalarType> reduce_dtype{};
  /// Sums gradients over an axis instead of all-reduces; null: none.
  std::shared_ptr<CommHook> hook{};
  std::string hook_axis{};

  /// The passes of a step for each coordinate of the pipeline axis (one without it): a pure function. Default:
  /// accumulation; a pipeline has no default. The table of a step is built from them, with `gathers` where needed, and
  /// reductions.
  std::function<std::vector<PassOrder>(int num_micro_batches)> passes{};
  GatherOptions gathers{.prefetch = 1};
  /// The gradients of a group are reduced once for each micro-batch, and accumulate in the sharded layout; else once a
  /// step, and accumulate in the unsharded layout.
  bool reduces_each_micro_batch = false;
  /// Whether the table has a reduction of each group for each micro-batch, which reduces or rounds to gradient_dtype.
  bool completes_each_micro_batch() const noexcept { return reduces_each_micro_batch || gradient_dtype != at::kFloat; }

  UnshardedMemory unsharded_memory = UnshardedMemory::freed;
  /// Frozen gathered parameters keep their memory whatever unsharded_memory says.
  bool keeps_frozen = false;
  bool stashes_weights() const noexcept { return unsharded_memory == UnshardedMemory::stashed; }
  /// If weights are stashed, the number of micro-batches in a batch; all of batch t read the version after max(0, t-1)
  /// updates of the step (PipeDream-2BW). 0: each reads the newest.
  int batch_of_versions = 0;
  /// Sums of gradients in the unsharded layout keep their memory, which includes the sharded gradients.
  bool keeps_gradients = false;
  /// The memory of the gradients of one rank alone holds activations from the begin of a step until its backward: they
  /// last until the next step begins. false: until its backward overwrites them.
  bool lends_gradients = true;
  /// Neighbouring groups whose gradients are reduced in place share collectives of at least this size.
  int64_t bucket_bytes = kBucketBytes;
  /// The same for the first collective of a step, if this is less, so that it starts early.
  int64_t first_bucket_bytes = kFirstBucketBytes;

  /// Where sharded parameters and moments of the optimizer, what the unsharded parameters are filled from, reduced
  /// gradients, and saved activations rest (techniques/offload/offload.h). With an optimizer on host or disk the host
  /// steps it.
  Tier optimizer_tier = Tier::device;
  Tier parameters_tier = Tier::device;
  Tier gradients_tier = Tier::device;
  Tier activations_tier = Tier::device;
  std::vector<std::filesystem::path> disk_dirs{};
  int fetch_ahead = 1;  ///< number of events by which a fetch precedes what needs it
  ParameterChunks chunks{};
  /// The memory of host and disk, made by the Engine; null: everything rests on the device.
  std::shared_ptr<Tiers> tiers{};
  /// A group steps as soon as its gradients are complete: for runs in which nothing later changes them.
  bool steps_early = false;
  /// The host's updates after this many of a run are delayed: each runs beside the next step, which does not see it.
  std::optional<int64_t> delay_after{};
  bool is_offloaded() const noexcept {
    return optimizer_tier != Tier::device || parameters_tier != Tier::device || gradients_tier != Tier::device ||
           activations_tier != Tier::device;
  }
  /// Where the sharded parameters rest: with the optimizer if it is away.
  Tier values_tier() const noexcept { return optimizer_tier == Tier::device ? parameters_tier : optimizer_tier; }

  /// The pipeline axis, and the coordinate that holds each stage. "": none.
  std::string pipeline_axis{};
  std::vector<int> rank_of_stage{};
  /// Messages between stages have the same shapes in every micro-batch of a step: the first one sends them. false: a
  /// header of 584 bytes precedes each.
  bool has_static_shapes = true;

  /// Layout of the loss: I or P on every axis.
  Layout loss_layout{};
  /// Whether this rank's loss is a summand of the global one: where the loss is I, only coordinate 0 counts.
  bool counts_loss(const Mesh& mesh) const;
  /// Layout of the batch, [rows, positions], on every axis: the rows that this rank is given.
  Layout batch_layout{};
  /// The axis whose first rank alone reads the batch and sends the others their rows; "": every rank reads its own.
  std::string controller_axis{};

  /// An axis whose coordinates step independently for a while: each has its own optimizer moments. "": none.
  std::string apart_axis{};

  /// A parameter without gradient in a step counts as zero; else it is an error that names it.
  bool find_unused_parameters = false;
  /// Every step runs the same units in the same order, on every rank, as its table says. false: steps of begin_step()
  /// may differ, and so may ranks; gradients are reduced when all are complete, in the order of the groups.
  bool static_graph = true;
  Buffers buffers = Buffers::broadcast;

  /// How layers are split; null: they are not split.
  std::shared_ptr<const AppliedPlan> plan{};
  /// Names of modules whose forward is repeated in backward (techniques/recompute/recompute.h).
  std::vector<std::string> recomputed{};
  /// Hooks that techniques have added to the model, in place as long as a copy of this lives, such as that of an
  /// Engine.
  std::vector<std::shared_ptr<const Hook>> hooks{};

  int num_stages() const noexcept { return units.empty() ? 0 : units.back().stage + 1; }
  /// The coordinate of the pipeline axis that holds `stage`; 0 without one.
  int coord_of(int stage) const { return rank_of_stage.empty() ? 0 : rank_of_stage[static_cast<size_t>(stage)]; }
};

/// The strategy of one process: a unit for each of model.blocks(), every sharded and unsharded parameter I (or as it is
/// laid out, if it has memory), the loss I, the batch whole.
Strategy whole_model(Module& model, const Mesh& mesh);

/// Completes `strategy` with an applied tensor plan (module/plan/plan.h), and keeps it applied.
void add_plan(Strategy& strategy, std::shared_ptr<const AppliedPlan> plan);

/// Makes `axis` a data axis: rows of the batch are split over it, the loss becomes P, each unsharded parameter R;
/// sharded ones stay I. This is data parallelism, except for how parameters are sharded.
void add_data_axis(Strategy& strategy, const Mesh& mesh, const std::string& axis);

/// Moves the activations of all units but the last to host or disk between their forward and their backward; the
/// backward of the last follows its forward.
void move_activations(Strategy& strategy, Tier tier);

/// Sets strategy.unsharded_memory for a technique that gathers parameters. Stashed weights stay so: the Engine then
/// names the gathered parameter that does not fit.
void set_unsharded_memory(Strategy& strategy, UnshardedMemory memory);

/// Throws LayoutError, naming `technique`, for a sharded parameter that is not I on `axis`.
void check_invariant(const Strategy& strategy, const Mesh& mesh, const std::string& axis, const std::string& technique);

/// Makes modules inside the units separate units, which are on the stage of the unit around them.
void add_units(Strategy& strategy, const std::set<const Module*>& modules);

/// Makes modules inside the units separate units: those whose name matches one of `patterns` (* stands for any
/// characters), except modules inside another match. Throws UsageError for a pattern without a match, naming the
/// nearest.
void split_units(Strategy& strategy, const std::vector<std::string>& patterns);

/// Shards the parameters of each group over a data axis: cut at rows of dim 0, in equal parts of the group up to a row,
/// each parameter S(0; sizes) (some ranks may hold no rows of it); scalars stay I. A gather of a group is then one
/// contiguous buffer. The first `num_parts` ranks of the axis hold a part each, the others none; 0: all ranks.
void shard_at_rows(Strategy& strategy, const Mesh& mesh, const std::string& axis, int num_parts = 0);

/// Splits the units over the axis into stages: unit i is on stage stage_of_unit[i], stage s on coordinate
/// rank_of_stage[s] (empty: s). Sharded parameters are stored on the coordinate of their stage; one that several
/// coordinates use is stored on that of its first stage and is unsharded R on all of them. Throws UsageError if the
/// stages are not 0, 1, .. in order, or a coordinate of the axis has none.
void add_stages(Strategy& strategy, Mesh& mesh, const std::string& axis, const std::vector<int>& stage_of_unit,
                std::vector<int> rank_of_stage = {});

/// The units and parameter groups of a strategy, for its tables.
Units units_of(const Strategy& strategy, const Mesh& mesh);

}  // namespace caravan
