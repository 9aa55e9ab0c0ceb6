#include <algorithm>

#include <fmt/format.h>

#include "caravan/base/text.h"
#include "caravan/train/key_kinds.h"

namespace caravan {
namespace {

RecipeKey for_technique(bool (DataParallelChoice::*holds)() const, RecipeKey key) {
  const std::string names = join(techniques_where(holds), "\", \"");
  key.idle = [holds, names](const Recipe& recipe) -> std::string {
    DataParallelChoice choice = recipe.data_parallel;
    if ((choice.*holds)()) return "";
    choice.mode = server_modes().front();
    if ((choice.*holds)()) return "is used with data_parallel.mode = \"" + choice.mode + "\" only";
    return fmt::format("is used with data_parallel.technique = \"{}\" only", names);
  };
  return key;
}

RecipeKey for_mode(bool (DataParallelChoice::*holds)() const, const std::string& modes, RecipeKey key) {
  return only_with(
      std::move(key), [holds](const Recipe& recipe) { return (recipe.data_parallel.*holds)(); },
      "is used with data_parallel.mode = " + modes + " only");
}

RecipeKey with_tp(RecipeKey key) {
  return only_with(
      std::move(key), [](const Recipe& recipe) { return recipe.tensor_parallel.is_used(); },
      "is used with mesh.tp above 1 only");
}

RecipeKey with_cp(RecipeKey key) {
  return only_with(
      std::move(key), [](const Recipe& recipe) { return recipe.context_parallel.is_used(); },
      "is used with mesh.cp above 1 only");
}

RecipeKey data_parallel_units() {
  return texts(
      "data_parallel.units", "modules inside blocks that are gathered on their own, such as \"blocks.*.mlp\"",
      [](Recipe & recipe) -> auto& { return recipe.data_parallel.units; });
}

RecipeKey hook() {
  RecipeKey key = choice(
      "data_parallel.hook", "sum gradients with fewer numbers: none, powersgd, topk",
      [](Recipe & recipe) -> auto& { return recipe.data_parallel.hook; }, communication_hooks());
  key.set = [set = key.set](Recipe& recipe, const RecipeValue& value) -> std::string {
    const auto* name = std::get_if<std::string>(&value);
    const std::string wrong = name != nullptr ? wrong_with_hook_name(*name) : "";
    return wrong.empty() ? set(recipe, value) : wrong;
  };
  return key;
}

RecipeKey loss_scale() {
  RecipeKey key{"precision.loss_scale",
                "what the loss is multiplied by: a number, or \"dynamic\": adapted to the gradients",
                [](const Recipe& recipe) -> RecipeValue {
                  if (recipe.precision.loss_scale == 0) return std::string("dynamic");
                  return recipe.precision.loss_scale;
                },
                [](Recipe& recipe, const RecipeValue& value) -> std::string {
                  const auto* text = std::get_if<std::string>(&value);
                  const bool is_dynamic = text != nullptr && *text == "dynamic";
                  const auto* whole = std::get_if<int64_t>(&value);
                  const auto* real = std::get_if<double>(&value);
                  if (!is_dynamic && whole == nullptr && real == nullptr)
                    return is_not(value, "a number or \"dynamic\"");
                  const double scale = is_dynamic ? 0 : whole != nullptr ? static_cast<double>(*whole) : *real;
                  const std::string wrong = is_dynamic ? "" : out_of({1, 1 << 24}, scale);
                  if (wrong.empty()) recipe.precision.loss_scale = scale;
                  return wrong;
                }};
  return only_with(
      std::move(key), [](const Recipe& recipe) { return recipe.precision.scales_loss(); },
      "is used with precision.compute = \"fp16\" only");
}

RecipeKey memory_recompute() {
  return {"memory.recompute", "computed again in backward: none, selective, full, or a list of modules",
          [](const Recipe& recipe) -> RecipeValue {
            const RecomputeChoice& choice = recipe.memory.recompute;
            if (choice.kind == RecomputeChoice::Kind::modules) return choice.patterns;
            return choice.to_string();
          },
          [](Recipe& recipe, const RecipeValue& value) -> std::string {
            const std::vector<std::string>& kinds = recompute_kinds();
            if (const auto* one = std::get_if<std::string>(&value)) {
              const auto kind = std::find(kinds.begin(), kinds.end(), *one);
              if (kind == kinds.end()) {
                return fmt::format(
                    "'{}' is not one of {}, nor a list of modules such as [\"blocks.*\"]; the nearest is '{}'", *one,
                    join(kinds), nearest(*one, kinds));
              }
              recipe.memory.recompute = {.kind = static_cast<RecomputeChoice::Kind>(kind - kinds.begin())};
              return "";
            }
            const auto* patterns = std::get_if<std::vector<std::string>>(&value);
            if (patterns == nullptr) return is_not(value, "a string or a list of modules");
            const std::string wrong = wrong_with_patterns(*patterns);
            if (wrong.empty()) {
              recipe.memory.recompute = {.kind = RecomputeChoice::Kind::modules, .patterns = *patterns};
            }
            return wrong;
          }};
}

// Gives a field of the recipe, for reading and writing.
#define FIELD(member) \
  [](Recipe & recipe) -> auto& { return recipe.member; }

}  // namespace

std::vector<RecipeKey> precision_keys() {
  return {
      choice("precision.compute", "dtype of the layers' arithmetic; parameters and moments are fp32",
             FIELD(precision.compute), {"fp32", "bf16", "fp16"}),
      choice("precision.gradients", "dtype in which gradients are kept", FIELD(precision.gradients), {"fp32", "bf16"}),
      choice("precision.reduce", "dtype in which gradients are reduced; auto: in which they are kept",
             FIELD(precision.reduce), {"auto", "fp32", "bf16", "fp16"}),
      loss_scale(),
  };
}

namespace {

std::vector<RecipeKey> mesh_keys() {
  return {
      integer("mesh.dp", "data-parallel ranks; 0: all that are left", FIELD(mesh.dp), {0, 1 << 20}),
      integer("mesh.tp", "ranks that split each layer", FIELD(tensor_parallel.degree), {1, 1 << 20}),
      integer("mesh.pp", "ranks that hold stages of a pipeline", FIELD(pipeline.degree), {1, 1 << 20}),
      integer("mesh.cp", "ranks that split each sequence", FIELD(context_parallel.degree), {1, 1 << 20}),
      integer("mesh.ep", "ranks that share the experts of each layer", FIELD(expert_parallel.degree), {1, 1 << 20}),
  };
}

std::vector<RecipeKey> data_parallel_keys() {
  return {
      choice("data_parallel.technique", "data-parallel technique", FIELD(data_parallel.technique),
             data_parallel_techniques()),
      integer("data_parallel.bucket_bytes", "bytes of gradients per all-reduce", FIELD(data_parallel.bucket_bytes),
              {1}),
      for_technique(&DataParallelChoice::is_sharded, data_parallel_units()),
      for_technique(&DataParallelChoice::has_groups,
                    integer("data_parallel.shard", "ranks that share one set of shards; a divisor of dp",
                            FIELD(data_parallel.shard), {0, 1 << 20})),
      for_technique(&DataParallelChoice::frees_parameters,
                    boolean("data_parallel.reshard_after_forward",
                            "free parameters after forward, gather them again for backward; false: once a step",
                            FIELD(data_parallel.reshard_after_forward))),
      for_technique(&DataParallelChoice::is_gathered, integer("data_parallel.prefetch", "units whose gather runs ahead",
                                                              FIELD(data_parallel.prefetch), {0, 2})),
      for_technique(&DataParallelChoice::accumulates,
                    choice("data_parallel.accumulate",
                           "gradients of micro-batches add up \"sharded\", or \"full\" with one reduction a step",
                           FIELD(data_parallel.accumulate), {"sharded", "full"})),
      for_technique(&DataParallelChoice::may_share,
                    choice("data_parallel.share",
                           "parameters lie once in memory that ranks share: \"auto\" where they can, \"on\", \"off\"",
                           FIELD(data_parallel.share), {"auto", "on", "off"})),
      hook(),
      only_with(
          integer("data_parallel.hook_rank", "powersgd: columns of the factors of a matrix",
                  FIELD(data_parallel.hook_rank), {1, 1 << 16}),
          [](const Recipe& recipe) { return recipe.data_parallel.hook == "powersgd"; },
          "is used with data_parallel.hook = \"powersgd\" only"),
      only_with(
          real("data_parallel.hook_fraction", "topk: the fraction of gradients that is sent",
               FIELD(data_parallel.hook_fraction), {1e-6, 1}),
          [](const Recipe& recipe) { return recipe.data_parallel.hook == "topk"; },
          "is used with data_parallel.hook = \"topk\" only"),
      for_technique(&DataParallelChoice::has_servers,
                    integer_or("data_parallel.servers",
                               "the first so many ranks hold parameters and optimizer state; \"all\": every rank",
                               FIELD(data_parallel.servers), {1, 1 << 20}, "all", 0)),
      for_technique(&DataParallelChoice::has_servers,
                    choice("data_parallel.mode",
                           "\"sync\": workers step together; \"async\": each at its own pace; \"bounded\": in limits",
                           FIELD(data_parallel.mode), server_modes())),
      for_mode(&DataParallelChoice::is_bounded, "\"bounded\"",
               integer("data_parallel.staleness", "steps that a worker may be ahead of the slowest one",
                       FIELD(data_parallel.staleness), {0, 1 << 20})),
      for_mode(&DataParallelChoice::is_asynchronous, "\"async\" or \"bounded\"",
               integer("data_parallel.drain",
                       "steps of the slowest worker after which all stop for a line of the log, at the latest",
                       FIELD(data_parallel.drain), {1, 1 << 20})),
  };
}

std::vector<RecipeKey> split_keys() {
  return {
      with_tp(choice("tensor_parallel.kind", "how layers are split: 1d, by columns and rows; 2d, 2.5d, 3d: over grids",
                     FIELD(tensor_parallel.kind), tensor_kinds())),
      only_with(
          boolean("tensor_parallel.sequence", "norms and the residual stream are split too, over the sequence",
                  FIELD(tensor_parallel.sequence)),
          [](const Recipe& recipe) { return recipe.tensor_parallel.is_used() && recipe.tensor_parallel.is_1d(); },
          "is used with mesh.tp above 1 and tensor_parallel.kind = \"1d\" only"),
      only_with(
          integer("tensor_parallel.depth", "2.5d: grids, each with a part of the batch", FIELD(tensor_parallel.depth),
                  {1, 1 << 20}),
          [](const Recipe& recipe) { return recipe.tensor_parallel.is_used() && recipe.tensor_parallel.has_depth(); },
          "is used with tensor_parallel.kind = \"2.5d\" only"),
      with_cp(choice("context_parallel.kind",
                     "attention over the ranks: keys and values go around, sequence is exchanged for heads, or both",
                     FIELD(context_parallel.kind), context_kinds())),
      only_with(
          integer("context_parallel.exchange",
                  "of mesh.cp, ranks that exchange sequence for heads; the others form rings",
                  FIELD(context_parallel.exchange), {1, 1 << 20}),
          [](const Recipe& recipe) { return recipe.context_parallel.is_used() && recipe.context_parallel.has_both(); },
          "is used with context_parallel.kind = \"both\" only"),
  };
}

}  // namespace

std::vector<RecipeKey> parallel_keys() {
  std::vector<RecipeKey> all = mesh_keys();
  for (const auto& part : {data_parallel_keys(), split_keys(), pipeline_keys()})
    all.insert(all.end(), part.begin(), part.end());
  all.push_back(memory_recompute());
  return all;
}

#undef FIELD

}  // namespace caravan
