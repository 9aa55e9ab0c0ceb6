#include "caravan/session/techniques.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "caravan/base/error.h"
#include "caravan/base/text.h"
#include "caravan/registry/changed_keys.h"

namespace caravan {
namespace {

/// A value of a key in C++; TOML writes numbers, booleans and simple texts as C++ does.
std::string code_of(const RecipeValue& value) {
  std::string text = to_toml(value);
  if (std::holds_alternative<std::vector<std::string>>(value)) return "{" + text.substr(1, text.size() - 2) + "}";
  return text;
}

using Keys = std::vector<std::pair<std::string, RecipeValue>>;

/// A function above that makes a Setting.
struct Function {
  std::string name;
  std::vector<std::string> members;  ///< of its struct, in order, named after keys
  Keys first{};                      ///< members that say which entry it is
};

std::optional<Function> function_of(const Setting& setting) {
  const std::string& name = setting.name();
  const std::string_view family = setting.family().name;
  if (family == "pipeline") return Function{"pipeline", {"micro_batches", "stages_per_rank"}, {{"schedule", name}}};
  if (family == "recompute" && name == "full") return Function{"recompute", {}};
  if (family == "recompute" && name == "modules") {
    return Function{"recompute", {}, {{"modules", setting.value("modules")}}};
  }
  if (family == "offload") {
    return Function{"offload",
                    {"parameters", "gradients", "optimizer", "activations", "disk_dirs", "device_budget", "prefetch",
                     "delayed_update", "delay_after"}};
  }
  if (family != "data_parallel") return std::nullopt;
  if (name == "ddp") return Function{"ddp", {"bucket_bytes"}};
  if (name == "zero1") return Function{"zero", {}, {{"stage", int64_t{1}}}};
  if (name == "zero2") return Function{"zero", {}, {{"stage", int64_t{2}}}};
  if (name == "zero3") return Function{"fsdp", {"units", "reshard_after_forward", "prefetch"}};
  if (name == "hsdp") return Function{"fsdp", {"units", "reshard_after_forward", "prefetch", "shard"}};
  return std::nullopt;
}

/// "fsdp({.prefetch = 2})".
std::string call_of(const std::string& function, const Keys& members) {
  std::vector<std::string> parts;
  for (const auto& [name, value] : members) parts.push_back(fmt::format(".{} = {}", name, code_of(value)));
  return parts.empty() ? function + "()" : fmt::format("{}({{{}}})", function, join(parts));
}

/// Nothing if the function has no members for some of the keys.
std::optional<std::string> call_of(const Function& function, Keys keys) {
  Keys members = function.first;
  for (const auto& [first, value] : function.first) {
    std::erase_if(keys, [&](const auto& key) { return key.first == first; });
  }
  for (const std::string& member : function.members) {
    const auto found = std::ranges::find(keys, member, &Keys::value_type::first);
    if (found != keys.end()) members.push_back(*found);
  }
  if (members.size() != function.first.size() + keys.size()) return std::nullopt;
  return call_of(function.name, members);
}

/// Any entry of the registry.
std::string code_of_setting(const Setting& setting) {
  std::vector<std::string> keys;
  for (const auto& [name, value] : changed_keys(setting)) {
    const auto* texts = std::get_if<std::vector<std::string>>(&value);
    keys.push_back(
        fmt::format("{{\"{}\", {}{}}}", name, texts != nullptr ? "std::vector<std::string>" : "", code_of(value)));
  }
  const std::string values = keys.empty() ? "" : fmt::format(", {{{}}}", join(keys));
  return fmt::format("Setting(\"{}\", \"{}\"{})", setting.family().name, setting.name(), values);
}

std::string code_of_precision(const PrecisionChoice& choice) {
  Keys members;
  const MixedPrecision usual;
  if (choice.compute != usual.compute) members.emplace_back("compute", choice.compute);
  if (choice.gradients != usual.gradients) members.emplace_back("gradients", choice.gradients);
  if (choice.reduce != usual.reduce) members.emplace_back("reduce", choice.reduce);
  return call_of("mixed_precision", members);
}

std::string code_of(const Placement& placement) {
  if (placement.is_partial()) return "Partial{}";
  if (!placement.is_shard()) return placement.is_invariant() ? "Invariant{}" : "Replicate{}";
  const std::string sizes = placement.sizes().empty() ? "" : fmt::format("{{{}}}", fmt::join(placement.sizes(), ", "));
  if (placement.blocks() == 1) {
    return fmt::format("Shard{{{}{}}}", placement.dim(), sizes.empty() ? "" : ", " + sizes);
  }
  return fmt::format("Shard{{.dim = {}{}, .blocks = {}}}", placement.dim(), sizes.empty() ? "" : ", .sizes = " + sizes,
                     placement.blocks());
}

std::string code_of_tensor(const TensorChoice& choice) {
  std::vector<std::string> parts;
  for (const NamedLayout& each : choice.layouts) {
    std::vector<std::string> entries;
    for (const auto& [axis, placement] : each.layout.entries()) {
      entries.push_back(fmt::format("{{\"{}\", {}}}", axis, code_of(placement)));
    }
    parts.push_back(fmt::format("{{\"{}\", {{{}}}}}", each.pattern, join(entries)));
  }
  if (choice.names.empty()) return fmt::format("tensor({{{}}})", join(parts));
  for (const DimNames& each : choice.names) parts.push_back(fmt::format("{{\"{}\", \"{}\"}}", each.pattern, each.dims));
  std::vector<std::string> extents;
  for (const auto& [name, extent] : choice.extents) extents.push_back(fmt::format("{{\"{}\", {}}}", name, extent));
  return fmt::format("tensor({{{}}}, {}{})", join(parts), choice.rules.to_string(),
                     extents.empty() ? "" : fmt::format(", {{{}}}", join(extents)));
}

}  // namespace

Setting ddp(const DdpChoice& choice) { return {"data_parallel", "ddp", {{"bucket_bytes", choice.bucket_bytes}}}; }

Setting zero(const ZeroChoice& choice) {
  if (choice.stage != 1 && choice.stage != 2) {
    throw UsageError({"parallelize", "zero", fmt::format("there is no stage {}", choice.stage), "",
                      choice.stage == 3 ? "use fsdp(), which is stage 3" : "use stage 1 or 2, or fsdp() for stage 3"});
  }
  return {"data_parallel", fmt::format("zero{}", choice.stage)};
}

Setting fsdp(const FsdpChoice& choice) {
  std::vector<std::pair<std::string, RecipeValue>> values{
      {"units", choice.units}, {"reshard_after_forward", choice.reshard_after_forward}, {"prefetch", choice.prefetch}};
  if (choice.shard != 0) values.emplace_back("shard", choice.shard);
  return {"data_parallel", choice.shard != 0 ? "hsdp" : "zero3", values};
}

Setting pipeline(const PipelineSettings& choice) {
  std::vector<std::pair<std::string, RecipeValue>> values;
  if (choice.micro_batches != 0) values.emplace_back("micro_batches", choice.micro_batches);
  if (choice.stages_per_rank != 0) values.emplace_back("stages_per_rank", choice.stages_per_rank);
  return {"pipeline", choice.schedule, values};
}

Setting recompute(const RecomputeChoice& choice) {
  if (choice.modules.empty()) return {"recompute", "full"};
  return {"recompute", "modules", {{"modules", choice.modules}}};
}

Setting offload(const OffloadChoice& choice) {
  std::vector<std::pair<std::string, RecipeValue>> values{{"optimizer", choice.optimizer},
                                                          {"gradients", choice.gradients},
                                                          {"parameters", choice.parameters},
                                                          {"activations", choice.activations}};
  if (!choice.disk_dirs.empty()) values.emplace_back("disk_dirs", choice.disk_dirs);
  if (!choice.device_budget.empty()) values.emplace_back("device_budget", choice.device_budget);
  const OffloadChoice usual;
  if (choice.prefetch != usual.prefetch) values.emplace_back("prefetch", choice.prefetch);
  if (choice.delayed_update) values.emplace_back("delayed_update", true);
  if (choice.delay_after != usual.delay_after) values.emplace_back("delay_after", choice.delay_after);
  return {"offload", "offload_tiers", values};
}

Setting tiling(const TilingChoice& choice) {
  std::vector<std::pair<std::string, RecipeValue>> values{{"tiles", choice.tiles}};
  if (!choice.modules.empty()) values.emplace_back("modules", choice.modules);
  return {"tiling", "tiled_rows", values};
}

PrecisionChoice mixed_precision(const MixedPrecision& choice) {
  return {.compute = choice.compute, .gradients = choice.gradients, .reduce = choice.reduce};
}

TensorChoice tensor(std::vector<NamedLayout> layouts) { return {.layouts = std::move(layouts)}; }

TensorChoice tensor(std::vector<DimNames> names, DimRules rules, DimExtents extents) {
  return {{}, std::move(names), std::move(rules), std::move(extents)};
}

std::string to_code(const Technique& technique) {
  if (const auto* tensor = std::get_if<TensorChoice>(&technique)) return code_of_tensor(*tensor);
  if (const auto* precision = std::get_if<PrecisionChoice>(&technique)) return code_of_precision(*precision);
  const auto& setting = std::get<Setting>(technique);
  const std::optional<Function> function = function_of(setting);
  const auto call = function ? call_of(*function, changed_keys(setting)) : std::nullopt;
  return call ? *call : code_of_setting(setting);
}

}  // namespace caravan
