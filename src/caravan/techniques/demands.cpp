#include "caravan/techniques/demands.h"

#include "caravan/registry/registry.h"

namespace caravan {

std::vector<Demand> demands_of(const RunProperties& run) {
  std::vector<Demand> demands;
  const auto add = [&](bool is_asked, const Demand& demand) {
    if (is_asked) demands.push_back(demand);
  };
  add(run.tp > 1, {Trait::splits_layers, "mesh.tp", "splits layers over ranks", "use mesh.tp = 1"});
  add(run.cp > 1, {Trait::splits_layers, "mesh.cp", "splits sequences over ranks", "use mesh.cp = 1"});
  add(run.ep > 1, {Trait::splits_layers, "mesh.ep", "splits experts over ranks", "use mesh.ep = 1"});
  add(run.pp > 1, {Trait::splits_stages, "mesh.pp", "cuts the model into stages", "use mesh.pp = 1"});
  add(run.computes_in_fp16,
      {Trait::scales_loss, "precision.compute", "fp16 needs one loss scale for all ranks, and steps that are skipped",
       "use precision.compute = \"bf16\""});
  add(run.keeps_16_bit_gradients,
      {Trait::rounds_gradients, "precision.gradients", "gradients are kept in 16 bits", "use \"fp32\""});
  add(run.reduces_in_16_bits,
      {Trait::rounds_reductions, "precision.reduce", "gradients are reduced in 16 bits", "use \"fp32\""});
  return demands;
}

std::vector<Demand> demands_of_optimizer(const Setting& optimizer) {
  std::vector<Demand> demands;
  for (const auto& [trait, why] : optimizer.traits().needs) {
    demands.push_back({trait, optimizer.full_name(), "\"" + optimizer.name() + "\" " + why,
                       "use " + optimizer.full_name() + " = \"" + Setting(optimizer.family().name).name() + "\""});
  }
  return demands;
}

std::optional<Misfit> misfit_of_offload(const Setting& data_parallel, const Setting& offload,
                                        bool computes_in_16_bits) {
  const std::string& tier = offload.text("optimizer");
  if (offload.flag("delayed_update") && !computes_in_16_bits && tier != "auto" && offload.text("parameters") == tier) {
    return Misfit{"offload.delayed_update",
                  "needs parameters for layers beside those that the optimizer writes, but in fp32 with both on \"" +
                      tier + "\" they are the same",
                  "use precision.compute = \"bf16\", offload.parameters = \"none\" or another tier, or "
                  "offload.delayed_update = false"};
  }
  if (offload.text("parameters") == "none") return std::nullopt;
  if (data_parallel.reads("reshard_after_forward") && !data_parallel.flag("reshard_after_forward")) {
    return Misfit{data_parallel.full_name("reshard_after_forward"),
                  "is false, but offloaded parameters are gathered again for backward",
                  "leave it out, or use offload.parameters = \"none\""};
  }
  if (data_parallel.reads("share") && data_parallel.text("share") == "on") {
    return Misfit{data_parallel.full_name("share"), "is \"on\", but offloaded parameters are not kept in shared memory",
                  "leave it out, or use offload.parameters = \"none\""};
  }
  return std::nullopt;
}

std::optional<Misfit> misfit_of_chunks(const Setting& chunks, const Setting& offload) {
  if (!chunks.reads("size") || chunks.text("size") == "none") return std::nullopt;
  const std::string& tier = offload.text("parameters");
  if (tier == "host" || tier == "disk") return std::nullopt;
  return Misfit{offload.full_name("parameters"),
                "is \"" + tier + "\", but chunks hold parameters that rest outside of the device (chunks.size)",
                "use \"host\" or \"disk\", or chunks.size = \"none\""};
}

std::vector<Setting> techniques_of(const Setting& data_parallel, const Setting& hook, const Setting& recompute,
                                   const PipelineChoice& pipeline, const Setting& offload) {
  std::vector<Setting> techniques{data_parallel, hook, recompute, offload};
  if (pipeline.is_used() && !pipeline.is_file()) techniques.push_back(pipeline.schedule);
  return techniques;
}

}  // namespace caravan
