#include "caravan/techniques/data/zero.h"

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/techniques/data/sharded.h"

namespace caravan {
namespace {

/// Common part of ZeRO and FSDP.
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
  const Accumulate usual = options.stage == 1 ? Accumulate::full : Accumulate::sharded;
  const Accumulate accumulate = options.accumulate.value_or(usual);
  if (options.stage == 1 && accumulate == Accumulate::sharded) {
    throw UsageError({name, "accumulate", "gradients that accumulate in shards belong to stage 2", "", "use stage 2"});
  }
  check_prefetch(name, options.prefetch);
  set_common(strategy, options);
  split_units(strategy, options.units);
  shard(strategy, mesh, name, options.axis);
  strategy.gathers = {.free_after_forward = false, .prefetch = options.prefetch};
  const bool shares = is_shared(name, mesh, mesh[options.axis], options.share);
  set_unsharded_memory(strategy, shares ? UnshardedMemory::shared : UnshardedMemory::kept);
  strategy.keeps_gradients = options.stage == 1;
  strategy.reduces_each_micro_batch = accumulate == Accumulate::sharded;
}

void add_fsdp(Strategy& strategy, const Mesh& mesh, const FsdpOptions& options) {
  const std::string name = options.replicate_axis.empty() ? "zero3" : "hsdp";
  check_prefetch(name, options.prefetch);
  if (options.hook != nullptr && options.replicate_axis.empty()) {
    throw UsageError({name, "hook", options.hook->name() + " takes the place of all-reduces, and there are none", "",
                      "set reduce_dtype, or replicate_axis: hsdp all-reduces between replicas"});
  }
  strategy.hook = options.hook;
  strategy.hook_axis = options.replicate_axis;
  set_common(strategy, options);
  split_units(strategy, options.units);
  if (!options.replicate_axis.empty()) {
    check_invariant(strategy, mesh, options.replicate_axis, name);
    add_data_axis(strategy, mesh, options.replicate_axis);
  }
  shard(strategy, mesh, name, options.axis);
  const bool shares = is_shared(name, mesh, mesh[options.axis], options.share);
  set_unsharded_memory(strategy, shares ? UnshardedMemory::shared : UnshardedMemory::freed);
  // In shared memory a second gather would find the values still there.
  strategy.gathers = {.free_after_forward = options.reshard_after_forward && !shares, .prefetch = options.prefetch};
  strategy.reduces_each_micro_batch = options.accumulate == Accumulate::sharded;
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
