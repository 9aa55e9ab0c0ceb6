#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "caravan/engine/bucket_bytes.h"
#include "caravan/engine/gradients/comm_hook.h"
#include "caravan/mesh/mesh.h"
#include "caravan/module/plan/plan.h"
#include "caravan/schedule/schedule.h"

namespace caravan {

/// How the buffers of a model (running statistics of batch norm) stay equal over the data axes: see model_buffers.h.
enum class Buffers : uint8_t { broadcast, average, local };

/// Where leaves have their memory. Gathered leaves are those that are not at rest; all others are the tensors at rest,
/// or copies of them in another dtype, unless weights are stashed.
enum class UnshardedMemory : uint8_t {
  freed,     ///< gathered leaves have memory from their gather until no unit reads them
  kept,      ///< gathered leaves keep their memory; parameters rest inside it where both have one dtype
  shared,    ///< as kept, in one buffer for all ranks of the axis that gathers them (Communicator::allocate_shared),
             ///< which then copies nothing; its own where several axes do, or memory is not shared
  versions,  ///< as kept, but parameters never rest inside it: this rank's own version of the values, which a
             ///< StepExchange may change during a step
  stashed,   ///< of stages that step their optimizer between passes (Pass::Kind::update), while micro-batches are in
             ///< flight: leaves are versions of the weights, and a backward reads that of its forward
             ///< (weight_versions.h). No leaf is gathered
};
/// Gathered leaves keep their memory when they are freed.
constexpr bool keeps_unsharded(UnshardedMemory memory) noexcept {
  return memory == UnshardedMemory::kept || memory == UnshardedMemory::shared || memory == UnshardedMemory::versions;
}

/// How a model is run by many ranks, as data: each technique is a function that changes some of it, and an Engine
/// carries it out. Techniques compose by changing the same strategy one after another: a tensor plan, pipeline stages,
/// data parallelism.
struct Strategy {
  std::string name;  ///< of the techniques, for messages: "ddp"

  /// A module whose forward and backward are events of the table; in forward order, a parent before the units inside
  /// it. Every parameter belongs to a unit.
  struct Unit {
    Module* module = nullptr;
    int stage = 0;
    bool is_recomputed = false;
  };
  std::vector<Unit> units;

  /// Of every parameter, on every axis of the mesh (rest: I or S; leaf: R where a data axis owes the gradient).
  std::map<std::string, ParameterLayouts> layouts;

  /// Of the leaves; kFloat: that of the parameters at rest, whatever it is. bf16, fp16: fp32 rests, this is computed
  /// with.
  at::ScalarType compute_dtype = at::kFloat;
  /// Of the gradients that are kept; kFloat: that of the parameters at rest. bf16: those of one micro-batch add up in
  /// fp32 and are rounded when their group is complete.
  at::ScalarType gradient_dtype = at::kFloat;
  /// In which gradients are reduced; none: in which they are kept.
  std::optional<at::ScalarType> reduce_dtype{};
  /// Sums gradients over an axis in place of all-reduces; null: none.
  std::shared_ptr<CommHook> hook{};
  std::string hook_axis{};

  /// The passes of a step for each coordinate of the pipeline axis (one without it): a pure function. Default:
  /// accumulation; a pipeline has none. The table of a step is made of them: with `gathers` where leaves are not at
  /// rest, and reductions.
  std::function<std::vector<PassOrder>(int num_micro_batches)> passes{};
  GatherOptions gathers{.prefetch = 1};
  /// The gradients of a group are reduced once for each micro-batch, and add up where they rest; else once a step, and
  /// add up in the layout of the leaves.
  bool reduces_each_micro_batch = false;
  /// The table has a reduction of each group for each micro-batch: they reduce, or round to gradient_dtype.
  bool completes_each_micro_batch() const noexcept { return reduces_each_micro_batch || gradient_dtype != at::kFloat; }

  UnshardedMemory unsharded_memory = UnshardedMemory::freed;
  bool stashes_weights() const noexcept { return unsharded_memory == UnshardedMemory::stashed; }
  /// Where weights are stashed, so many micro-batches make a batch, and all of batch t read the version after
  /// max(0, t-1) updates of the step (PipeDream-2BW). 0: each reads the newest.
  int batch_of_versions = 0;
  /// Sums of gradients in the layout of the leaves keep their memory, and at rest are inside it.
  bool keeps_gradients = false;
  /// Neighbouring groups whose gradients are reduced where they rest share collectives of at least this size.
  int64_t bucket_bytes = kBucketBytes;
  /// The same for the first collective of a step, if this is less: a small one starts early.
  int64_t first_bucket_bytes = kFirstBucketBytes;

  /// Pipeline: its axis, and the coordinate that holds each stage. "": none.
  std::string pipeline_axis{};
  std::vector<int> rank_of_stage{};
  /// What crosses from stage to stage has the same shapes in every micro-batch of a step: the first one tells them.
  /// false: a header of 584 bytes goes before each.
  bool has_static_shapes = true;

  /// Of the loss: I or P on every axis.
  Layout loss_layout{};
  /// Whether this rank's loss is a summand of the global one: where it is invariant, coordinate 0 counts.
  bool counts_loss(const Mesh& mesh) const;
  /// Of the batch, [rows, positions], on every axis: which rows this rank is given.
  Layout batch_layout{};
  /// The axis whose first rank alone makes the batch, and gives the others their rows; "": every rank makes its own.
  std::string controller_axis{};

  /// An axis whose coordinates step apart for a while: then each has optimizer moments of its own. "": none.
  std::string apart_axis{};

  /// A parameter without gradient in a step counts as zero; else it is an error that names it.
  bool find_unused_parameters = false;
  /// Every step runs the same units in the same order, on every rank, as its table says. false: steps of begin_step()
  /// may differ, and so may ranks; gradients are reduced when all are complete, in the order of the groups.
  bool static_graph = true;
  Buffers buffers = Buffers::broadcast;

  /// How layers are split; null: they are whole.
  std::shared_ptr<const AppliedPlan> plan{};
  /// Modules whose forward is run again in backward, by name (techniques/recompute/recompute.h).
  std::vector<std::string> recomputed{};
  /// What techniques have put on the model: in place as long as a copy of this lives, such as that of an Engine.
  std::vector<std::shared_ptr<const Hook>> hooks{};

  int num_stages() const noexcept { return units.empty() ? 0 : units.back().stage + 1; }
  /// The coordinate of the pipeline axis that holds `stage`; 0 without one.
  int coord_of(int stage) const { return rank_of_stage.empty() ? 0 : rank_of_stage[static_cast<size_t>(stage)]; }
};

/// One process's way: a unit for each of model.blocks(), every parameter I at rest and as a leaf (or as it is laid out,
/// if it has memory), the loss I, the batch whole.
Strategy whole_model(Module& model, const Mesh& mesh);

/// Completes `strategy` with a tensor plan in force (module/plan/plan.h), and keeps it in force.
void add_plan(Strategy& strategy, std::shared_ptr<const AppliedPlan> plan);

/// Makes `axis` a data axis: rows of the batch are split over it, the loss becomes P, each leaf R; parameters stay
/// invariant at rest. Data parallelism; what is left to decide is where they rest.
void add_data_axis(Strategy& strategy, const Mesh& mesh, const std::string& axis);

/// Sets strategy.leaf_memory, for a technique that gathers leaves. Weights that are stashed stay so: the Engine then
/// names the gathered leaf that does not fit.
void set_unsharded_memory(Strategy& strategy, UnshardedMemory memory);

/// Throws LayoutError, naming `technique`, for a parameter that does not rest invariant on `axis`.
void check_invariant(const Strategy& strategy, const Mesh& mesh, const std::string& axis, const std::string& technique);

/// Makes modules inside the units units of their own: those whose name fits one of `patterns` (* stands for any
/// characters), but not those inside another that fits. Throws UsageError for a pattern that fits no module, naming the
/// nearest.
void split_units(Strategy& strategy, const std::vector<std::string>& patterns);

/// Lets the parameters of each group rest in shards over a data axis: cut at rows of dim 0, in equal parts of the group
/// up to a row, each parameter S(0; sizes) (some ranks may hold no row of it); scalars stay invariant. A gather of a
/// group is then one contiguous buffer. The first `num_parts` ranks of the axis hold a part each, the others none; 0:
/// all ranks do.
void shard_at_rows(Strategy& strategy, const Mesh& mesh, const std::string& axis, int num_parts = 0);

/// Splits the units over the axis into stages: unit i is on stage stage_of_unit[i], stage s on coordinate
/// rank_of_stage[s] (empty: s). Parameters rest on the coordinate of their stage; one that several coordinates use
/// rests on that of its first stage and is a leaf R on all of them.
/// Throws UsageError if the stages are not 0, 1, .. in order, or a coordinate of the axis has none.
void add_stages(Strategy& strategy, Mesh& mesh, const std::string& axis, const std::vector<int>& stage_of_unit,
                std::vector<int> rank_of_stage = {});

/// The units and parameter groups of a strategy, as tables go by them.
Units units_of(const Strategy& strategy, const Mesh& mesh);

}  // namespace caravan
