#include "caravan/parallel/zero.h"

#include <fmt/format.h>

#include "caravan/base/error.h"

namespace caravan {
namespace {

void check_prefetch(const std::string& name, int prefetch) {
  if (prefetch >= 0 && prefetch <= 2) return;
  throw UsageError({name, "prefetch", fmt::format("{} units", prefetch), "", prefetch < 0 ? "use 0" : "use 2"});
}

/// The same on every rank of the mesh. Collective unless `share` is off.
bool is_shared(const std::string& name, const Mesh& mesh, const MeshAxis& axis, Share share) {
  if (share == Share::off || axis.size() == 1) return false;
  int64_t can = axis.comm().shares_memory() ? 1 : 0;
  const Buffer buffer{&can, 1, Dtype::int64};
  mesh.world().all_reduce(buffer, buffer, ReduceOp::min, "shared memory");
  if (share == Share::on && can == 0) {
    throw UsageError({name, "share", fmt::format("the ranks of axis {} do not share memory", axis.name()), axis.where(),
                      "use \"auto\" or \"off\", or ranks of one host with comm.backend = \"shm\""});
  }
  return can == 1;
}

/// What ZeRO and FSDP have in common.
void shard(Strategy& strategy, const Mesh& mesh, const std::string& name, const std::string& axis) {
  check_invariant(strategy, mesh, axis, name);
  strategy.name = name;
  add_data_axis(strategy, mesh, axis);
  shard_at_rows(strategy, mesh, axis);
}

}  // namespace

void add_zero(Strategy& strategy, const Mesh& mesh, const ZeroOptions& options) {
  const std::string name = fmt::format("zero{}", options.stage);
  if (options.stage != 1 && options.stage != 2) {
    throw UsageError(
        {"zero", "stage", fmt::format("there is no stage {}", options.stage), "", "use 1 or 2; stage 3 is fsdp()"});
  }
  const Accumulate usual = options.stage == 1 ? Accumulate::full : Accumulate::at_rest;
  const Accumulate accumulate = options.accumulate.value_or(usual);
  if (options.stage == 1 && accumulate == Accumulate::at_rest) {
    throw UsageError({name, "accumulate", "gradients that add up in shards are those of stage 2", "", "use stage 2"});
  }
  check_prefetch(name, options.prefetch);
  split_units(strategy, options.units);
  shard(strategy, mesh, name, options.axis);
  strategy.gathers = {.free_after_forward = false, .prefetch = options.prefetch};
  strategy.keeps_leaves = true;
  strategy.shares_leaves = is_shared(name, mesh, mesh[options.axis], options.share);
  strategy.keeps_gradients = options.stage == 1;
  strategy.reduces_each_micro_batch = accumulate == Accumulate::at_rest;
  strategy.leaf_dtype = options.compute_dtype;
  strategy.allow_unused = options.allow_unused;
  strategy.buffers = options.buffers;
}

void add_fsdp(Strategy& strategy, const Mesh& mesh, const FsdpOptions& options) {
  const std::string name = options.replicate_axis.empty() ? "zero3" : "hsdp";
  check_prefetch(name, options.prefetch);
  split_units(strategy, options.units);
  if (!options.replicate_axis.empty()) {
    check_invariant(strategy, mesh, options.replicate_axis, name);
    add_data_axis(strategy, mesh, options.replicate_axis);
  }
  shard(strategy, mesh, name, options.axis);
  strategy.shares_leaves = strategy.keeps_leaves = is_shared(name, mesh, mesh[options.axis], options.share);
  // In shared memory a second gather would find what is still there.
  strategy.gathers = {.free_after_forward = options.reshard_after_forward && !strategy.keeps_leaves,
                      .prefetch = options.prefetch};
  strategy.reduces_each_micro_batch = options.accumulate == Accumulate::at_rest;
  strategy.leaf_dtype = options.compute_dtype;
  strategy.allow_unused = options.allow_unused;
  strategy.buffers = options.buffers;
}

Strategy zero(Module& model, const Mesh& mesh, const ZeroOptions& options) {
  Strategy strategy = whole_model(model, mesh);
  add_zero(strategy, mesh, options);
  return strategy;
}

Strategy fsdp(Module& model, const Mesh& mesh, const FsdpOptions& options) {
  Strategy strategy = whole_model(model, mesh);
  add_fsdp(strategy, mesh, options);
  return strategy;
}

}  // namespace caravan
