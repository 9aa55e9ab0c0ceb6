#include <algorithm>

#include <fmt/format.h>

#include "caravan/base/text.h"
#include "caravan/recipe/key_kinds.h"

namespace caravan {
namespace {

RecipeKey loss_scale() {
  RecipeKey key{{"precision.loss_scale", OnResume::listed},
                "factor of the loss: a number, or \"dynamic\": adapted to the gradients",
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

// Accesses a field of the recipe, for reading and writing.
#define FIELD(member) \
  [](Recipe & recipe) -> auto& { return recipe.member; }

}  // namespace

std::vector<RecipeKey> precision_keys() {
  return {
      choice({"precision.compute", OnResume::history},
             "dtype of the layers' arithmetic; parameters and moments are fp32", FIELD(precision.compute),
             {"fp32", "bf16", "fp16"}),
      choice({"precision.gradients", OnResume::listed}, "dtype in which gradients are kept", FIELD(precision.gradients),
             {"fp32", "bf16"}),
      choice({"precision.reduce", OnResume::listed},
             "dtype in which gradients are reduced; auto: in which they are kept", FIELD(precision.reduce),
             {"auto", "fp32", "bf16", "fp16"}),
      loss_scale(),
  };
}

namespace {

std::vector<RecipeKey> mesh_keys() {
  return {
      integer({"mesh.dp", OnResume::free}, "data-parallel ranks; 0: all remaining ranks", FIELD(mesh.dp), {0, 1 << 20}),
      integer({"mesh.tp", OnResume::free}, "ranks that split each layer", FIELD(tensor_parallel.degree), {1, 1 << 20}),
      integer({"mesh.pp", OnResume::free}, "ranks that hold stages of a pipeline", FIELD(pipeline.degree),
              {1, 1 << 20}),
      integer({"mesh.cp", OnResume::free}, "ranks that split each sequence", FIELD(context_parallel.degree),
              {1, 1 << 20}),
      integer({"mesh.ep", OnResume::free}, "ranks that share the experts of each layer", FIELD(expert_parallel.degree),
              {1, 1 << 20}),
  };
}

}  // namespace

std::vector<RecipeKey> parallel_keys() {
  std::vector<RecipeKey> all = mesh_keys();
  for (const auto& part :
       {family_keys("data_parallel", FIELD(data_parallel)), family_keys("hook", FIELD(hook)),
        split_keys("tensor_parallel", FIELD(tensor_parallel)), split_keys("context_parallel", FIELD(context_parallel)),
        split_keys("expert_parallel", FIELD(expert_parallel)), pipeline_keys(), family_keys("tiling", FIELD(tiling)),
        family_keys("recompute", FIELD(memory.recompute)), family_keys("offload", FIELD(offload)),
        family_keys("chunks", FIELD(chunks))})
    all.insert(all.end(), part.begin(), part.end());
  return all;
}

#undef FIELD

}  // namespace caravan
