#include <algorithm>

#include "caravan/recipe/key_kinds.h"

namespace caravan {
namespace {

RecipeKey with_adapters(RecipeKey key) {
  return only_with(
      std::move(key), [](const Recipe& recipe) { return recipe.model.lora.is_used(); },
      "is used with lora.rank above 0, or with lora.adapter, only");
}

// Accesses a field of the adapters, for reading and writing.
#define FIELD(member) \
  [](Recipe & recipe) -> auto& { return recipe.model.lora.member; }

}  // namespace

std::vector<RecipeKey> lora_keys() {
  return {
      integer({"lora.rank", OnResume::shape},
              "rank of the adapters, which alone are trained; 0: none, all weights are trained", FIELD(rank),
              {0, 1 << 16}),
      with_adapters(real({"lora.alpha", OnResume::function},
                         "the scale of adapters is alpha / rank, with rslora alpha / sqrt(rank)", FIELD(alpha),
                         {1e-6, 1e6})),
      with_adapters(boolean({"lora.rslora", OnResume::function}, "the scale is alpha / sqrt(rank)", FIELD(rslora))),
      with_adapters(texts({"lora.targets", OnResume::shape},
                          "linear layers that get one, such as \"query\", \"mlp.*\", \"experts.*\", \"*\"",
                          FIELD(targets))),
      only_with(
          boolean({"lora.experts", OnResume::shape}, "targets mean the tables of experts too", FIELD(experts)),
          [](const Recipe& recipe) { return recipe.model.lora.is_used() && recipe.model.moe.is_used(); },
          "is used with adapters of a model with experts only"),
      with_adapters(real({"lora.dropout", OnResume::history}, "dropout probability of what adapters read",
                         FIELD(dropout), {0, 0.99})),
      with_adapters(boolean({"lora.dora", OnResume::shape},
                            "DoRA: the outputs of adapted layers have trained magnitudes", FIELD(dora))),
      with_adapters(texts({"lora.modules_to_save", OnResume::shape},
                          "modules that are trained whole beside the adapters: \"embedding\", \"head\"; []: none",
                          FIELD(saved))),
      only_with(
          boolean(
              {"lora.keep_frozen", OnResume::free}, "frozen weights stay gathered, instead of a gather for each use",
              [](Recipe & recipe) -> auto& { return recipe.memory.keeps_frozen; }),
          [](const Recipe& recipe) {
            return recipe.model.lora.is_used() && recipe.data_parallel.reads("reshard_after_forward");
          },
          "is used with adapters, and with data parallelism that frees what it gathers, only"),
      text(
          {"lora.adapter", OnResume::free}, "start with the adapters of this folder, in PEFT's format; \"\": new ones",
          [](Recipe & recipe) -> auto& { return recipe.train.adapter; }),
  };
}

#undef FIELD

}  // namespace caravan
