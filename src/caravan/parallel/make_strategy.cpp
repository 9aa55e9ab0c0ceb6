#include "caravan/parallel/make_strategy.h"

#include <algorithm>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/text.h"
#include "caravan/memory/recompute.h"
#include "caravan/parallel/ddp.h"
#include "caravan/parallel/param_server.h"
#include "caravan/parallel/replicas.h"
#include "caravan/parallel/zero.h"

namespace caravan {
namespace {

constexpr const char* kAxis = "dp";

Share share_of(const std::string& name) {
  if (name == "auto") return Share::automatic;
  if (name == "on") return Share::on;
  if (name == "off") return Share::off;
  throw UsageError({"strategy", "share", "'" + name + "' is not auto, on or off", "",
                    "use '" + nearest(name, std::vector<std::string>{"auto", "on", "off"}) + "'"});
}

Accumulate accumulate_of(const std::string& name) {
  if (name == "sharded") return Accumulate::at_rest;
  if (name == "full") return Accumulate::full;
  throw UsageError({"strategy", "accumulate", "'" + name + "' is not sharded or full", "",
                    "use '" + nearest(name, std::vector<std::string>{"sharded", "full"}) + "'"});
}

Strategy with_servers(const StrategyChoice& all, Module& model, const Mesh& mesh) {
  const DataParallelChoice& choice = all.data_parallel;
  const auto& modes = server_modes();
  if (std::ranges::find(modes, choice.mode) == modes.end()) {
    throw UsageError({"strategy", "mode", "'" + choice.mode + "' is not one of " + join(modes), "",
                      "use '" + nearest(choice.mode, modes) + "'"});
  }
  if (choice.staleness < 0 || choice.drain < 1) {
    throw UsageError({"strategy", choice.drain < 1 ? "drain" : "staleness",
                      fmt::format("{} steps", choice.drain < 1 ? choice.drain : choice.staleness), mesh.where(),
                      choice.drain < 1 ? "use 1 or more" : "use 0 or more"});
  }
  return param_server(model, mesh,
                      {.axis = kAxis,
                       .servers = static_cast<int>(choice.servers),
                       .is_synchronous = !choice.is_asynchronous(),
                       .units = choice.units,
                       .prefetch = static_cast<int>(choice.prefetch),
                       .accumulate = accumulate_of(choice.accumulate),
                       .share = share_of(choice.share),
                       .compute_dtype = all.compute_dtype});
}

/// Splits the axis into replicas of groups that share one set of shards.
void factor_into_groups(Mesh& mesh, const DataParallelChoice& choice) {
  const int64_t dp = mesh[kAxis].size();
  if (const std::string wrong = choice.wrong_with_shard(dp); !wrong.empty()) {
    throw UsageError({"strategy", "shard", wrong, mesh.where(), choice.instead_of_shard(dp)});
  }
  mesh = mesh.factor(kAxis,
                     {{"replicate", static_cast<int>(dp / choice.shard)}, {"shard", static_cast<int>(choice.shard)}});
}

Strategy data_parallel(const StrategyChoice& all, Module& model, Mesh& mesh) {
  const DataParallelChoice& choice = all.data_parallel;
  if (choice.technique == "ddp") {
    return ddp(model, mesh, {.compute_dtype = all.compute_dtype});
  }
  if (choice.technique == "zero1" || choice.technique == "zero2") {
    const bool is_first = choice.technique == "zero1";
    ZeroOptions options{.stage = is_first ? 1 : 2,
                        .units = choice.units,
                        .prefetch = static_cast<int>(choice.prefetch),
                        .share = share_of(choice.share),
                        .compute_dtype = all.compute_dtype};
    if (!is_first) options.accumulate = accumulate_of(choice.accumulate);
    return zero(model, mesh, options);
  }
  if (choice.frees_parameters()) {
    FsdpOptions options{.axis = kAxis,
                        .units = choice.units,
                        .reshard_after_forward = choice.reshard_after_forward,
                        .prefetch = static_cast<int>(choice.prefetch),
                        .accumulate = accumulate_of(choice.accumulate),
                        .share = share_of(choice.share),
                        .compute_dtype = all.compute_dtype};
    if (choice.has_groups()) {
      factor_into_groups(mesh, choice);
      options.axis = "shard";
      options.replicate_axis = "replicate";
    }
    return fsdp(model, mesh, options);
  }
  if (choice.has_servers()) return with_servers(all, model, mesh);
  if (choice.is_replicated()) {
    return replicas(model, mesh,
                    {.axis = kAxis,
                     .prefetch = static_cast<int>(choice.prefetch),
                     .accumulate = accumulate_of(choice.accumulate),
                     .units = choice.units,
                     .compute_dtype = all.compute_dtype});
  }
  throw UsageError({"strategy", choice.technique, "is not a data-parallel technique", "",
                    "use '" + nearest(choice.technique, data_parallel_techniques()) + "'"});
}

}  // namespace

Strategy make_strategy(const StrategyChoice& choice, Module& model, Mesh& mesh) {
  Strategy strategy = data_parallel(choice, model, mesh);
  strategy.bucket_bytes = choice.data_parallel.bucket_bytes;
  add_recompute(strategy, model, choice.recompute);
  return strategy;
}

}  // namespace caravan
