#include "caravan/techniques/server/param_server.h"

#include <algorithm>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/techniques/data/sharded.h"

namespace caravan {
namespace {

constexpr const char* kName = "param_server";

void check_servers(int servers, const MeshAxis& axis) {
  if (servers >= 0 && servers <= axis.size()) return;
  throw UsageError({kName, "servers",
                    fmt::format("{} servers on axis {} of {} ranks", servers, axis.name(), axis.size()), axis.where(),
                    fmt::format("use {}", std::clamp(servers, 1, axis.size()))});
}

/// Refuses what ranks that do not step together cannot keep equal: buffers, and scalars, which every rank holds.
void refuse_asynchronous(Module& model, Buffers buffers) {
  if (buffers != Buffers::local && !model.buffers().empty()) {
    throw UsageError({kName, model.buffers().front().first,
                      "is a buffer, which workers that do not wait for each other cannot keep equal", "",
                      "use Buffers::local, or push synchronously"});
  }
  for (const Parameter* parameter : model.parameters()) {
    if (!parameter->global_shape().empty()) continue;
    throw LayoutError({kName, parameter->name(), "has no dims, so no server can hold it alone", "",
                       "give it the shape [1], or push synchronously"});
  }
}

}  // namespace

void add_param_server(Strategy& strategy, const Mesh& mesh, const ParameterServerOptions& options) {
  const MeshAxis& axis = mesh[options.axis];
  const bool is_synchronous = options.is_synchronous;
  check_servers(options.servers, axis);
  check_prefetch(kName, options.prefetch);
  if (!is_synchronous) {
    for (const Strategy::Unit& unit : strategy.units) refuse_asynchronous(*unit.module, options.buffers);
  }
  if (!is_synchronous && (options.gradient_dtype != at::kFloat || options.reduce_dtype)) {
    throw UsageError({kName, options.reduce_dtype ? "reduce_dtype" : "gradient_dtype",
                      "workers that do not wait for each other push fp32", "", "leave it out, or push synchronously"});
  }
  set_common(strategy, options);
  split_units(strategy, options.units);
  check_invariant(strategy, mesh, options.axis, kName);
  strategy.name = kName;
  add_data_axis(strategy, mesh, options.axis);
  shard_at_rows(strategy, mesh, options.axis, options.servers);
  // A pull waits for the values, so prefetching one would hold up the units before it.
  strategy.gathers = {.free_after_forward = false, .prefetch = is_synchronous ? options.prefetch : 0};
  UnshardedMemory memory = UnshardedMemory::versions;
  if (is_synchronous)
    memory = is_shared(kName, mesh, axis, options.share) ? UnshardedMemory::shared : UnshardedMemory::kept;
  set_unsharded_memory(strategy, memory);
  strategy.reduces_each_micro_batch = is_synchronous && options.accumulate == Accumulate::sharded;
  if (!is_synchronous) strategy.buffers = Buffers::local;
}

Strategy param_server(Module& model, const Mesh& mesh, const ParameterServerOptions& options) {
  Strategy strategy = whole_model(model, mesh);
  add_param_server(strategy, mesh, options);
  return strategy;
}

}  // namespace caravan
