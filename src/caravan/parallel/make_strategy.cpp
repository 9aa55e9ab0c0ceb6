#include "caravan/parallel/make_strategy.h"

#include <algorithm>

#include <fmt/format.h>

#include "caravan/base/error.h"
#include "caravan/base/text.h"
#include "caravan/memory/recompute.h"
#include "caravan/parallel/ddp.h"
#include "caravan/parallel/param_server.h"
#include "caravan/parallel/pipeline.h"
#include "caravan/parallel/power_sgd.h"
#include "caravan/parallel/replicas.h"
#include "caravan/parallel/split_model.h"
#include "caravan/parallel/top_k.h"
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

at::ScalarType dtype_of(const std::string& name) {
  if (name == "fp32") return at::kFloat;
  if (name == "bf16") return at::kBFloat16;
  if (name == "fp16") return at::kHalf;
  throw UsageError({"strategy", "precision", "'" + name + "' is not a dtype to compute in", "",
                    "use '" + nearest(name, std::vector<std::string>{"fp32", "bf16", "fp16"}) + "'"});
}

std::shared_ptr<ReductionHook> make_hook(const DataParallelChoice& choice) {
  if (choice.hook == "powersgd") return std::make_shared<PowerSgdHook>(choice.hook_rank);
  if (choice.hook == "topk") return std::make_shared<TopKHook>(choice.hook_fraction);
  return nullptr;
}

template <class Options>
void set_dtypes(Options& options, const StrategyChoice& choice) {
  options.compute_dtype = choice.compute_dtype;
  options.gradient_dtype = choice.gradient_dtype;
  options.reduce_dtype = choice.reduce_dtype;
}

void add_servers(Strategy& strategy, const StrategyChoice& all, const Mesh& mesh) {
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
  ParameterServerOptions options{.axis = kAxis,
                                 .servers = static_cast<int>(choice.servers),
                                 .is_synchronous = !choice.is_asynchronous(),
                                 .units = choice.units,
                                 .prefetch = static_cast<int>(choice.prefetch),
                                 .accumulate = accumulate_of(choice.accumulate),
                                 .share = share_of(choice.share)};
  set_dtypes(options, all);
  add_param_server(strategy, mesh, options);
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

void add_data_parallel(Strategy& strategy, const StrategyChoice& all, const Mesh& mesh) {
  const DataParallelChoice& choice = all.data_parallel;
  if (choice.technique == "ddp") {
    DdpOptions options{.hook = make_hook(choice)};
    set_dtypes(options, all);
    return add_ddp(strategy, mesh, options);
  }
  if (choice.technique == "zero1" || choice.technique == "zero2") {
    const bool is_first = choice.technique == "zero1";
    ZeroOptions options{.stage = is_first ? 1 : 2,
                        .units = choice.units,
                        .prefetch = static_cast<int>(choice.prefetch),
                        .share = share_of(choice.share)};
    set_dtypes(options, all);
    if (!is_first) options.accumulate = accumulate_of(choice.accumulate);
    return add_zero(strategy, mesh, options);
  }
  if (choice.frees_parameters()) {
    FsdpOptions options{.axis = kAxis,
                        .units = choice.units,
                        .reshard_after_forward = choice.reshard_after_forward,
                        .prefetch = static_cast<int>(choice.prefetch),
                        .accumulate = accumulate_of(choice.accumulate),
                        .share = share_of(choice.share),
                        .hook = make_hook(choice)};
    set_dtypes(options, all);
    if (choice.has_groups()) {
      options.axis = "shard";
      options.replicate_axis = "replicate";
    }
    return add_fsdp(strategy, mesh, options);
  }
  if (choice.has_servers()) return add_servers(strategy, all, mesh);
  if (choice.is_replicated()) {
    ReplicasOptions options{.axis = kAxis,
                            .prefetch = static_cast<int>(choice.prefetch),
                            .accumulate = accumulate_of(choice.accumulate),
                            .units = choice.units};
    set_dtypes(options, all);
    return add_replicas(strategy, mesh, options);
  }
  throw UsageError({"strategy", choice.technique, "is not a data-parallel technique", "",
                    "use '" + nearest(choice.technique, data_parallel_techniques()) + "'"});
}

}  // namespace

StrategyChoice strategy_choice(const DataParallelChoice& data_parallel, const PrecisionChoice& precision,
                               const RecomputeChoice& recompute) {
  if (const std::string wrong = wrong_with_hook(data_parallel, precision); !wrong.empty()) {
    throw UsageError({"strategy", "hook", wrong, "", "use \"none\""});
  }
  if (const std::string wrong = wrong_with_precision(data_parallel, precision); !wrong.empty()) {
    throw UsageError({"strategy", "precision", wrong, "", "use fp32 or bf16 to compute in, and fp32 for the rest"});
  }
  StrategyChoice choice{.data_parallel = data_parallel,
                        .compute_dtype = dtype_of(precision.compute),
                        .gradient_dtype = dtype_of(precision.gradients),
                        .recompute = recompute};
  const std::string& reduce = precision.reduced_in();
  if (reduce != precision.gradients) choice.reduce_dtype = dtype_of(reduce);
  return choice;
}

Strategy make_strategy(const StrategyChoice& given, Module& model, Mesh& mesh) {
  StrategyChoice choice = given;
  const std::string& hook = choice.data_parallel.hook;
  if (const std::string wrong = wrong_with_hook_name(hook); !wrong.empty()) {
    throw UsageError({"strategy", "hook", wrong, "", "or leave it out"});
  }
  if (const std::string wrong = wrong_with_hook(choice.data_parallel, {}); !wrong.empty()) {
    throw UsageError({"strategy", "hook", wrong, "", "use \"none\""});
  }
  if (choice.data_parallel.has_groups()) factor_into_groups(mesh, choice.data_parallel);
  Strategy strategy = split_model(choice, model, mesh);
  const bool recomputes_stages = choice.recompute.kind == RecomputeChoice::Kind::stage;
  if (recomputes_stages && !choice.pipeline.is_used()) {
    throw UsageError(
        {"strategy", "recompute", "stages are recomputed in a pipeline only, and there is one stage", "", "use full"});
  }
  if (choice.pipeline.is_used()) {
    refuse_beside_split(choice.data_parallel, mesh);
    add_pipeline(strategy, mesh,
                 {.choice = choice.pipeline, .stage_of_block = choice.stage_of_block, .recompute = recomputes_stages});
  }
  add_data_parallel(strategy, choice, mesh);
  strategy.bucket_bytes = choice.data_parallel.bucket_bytes;
  add_recompute(strategy, model, choice.recompute);
  return strategy;
}

}  // namespace caravan
