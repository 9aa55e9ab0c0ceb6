#include <algorithm>

#include <fmt/format.h>

#include "caravan/base/text.h"
#include "caravan/recipe/key_kinds.h"

namespace caravan {
namespace {

RecipeKey with_experts(RecipeKey key) {
  return only_with(
      std::move(key), [](const Recipe& recipe) { return recipe.model.moe.is_used(); },
      "is used with moe.experts above 0 only");
}

RecipeKey with_shared(RecipeKey key) {
  return only_with(
      std::move(key), [](const Recipe& recipe) { return recipe.model.moe.is_used() && recipe.model.moe.has_shared(); },
      "is used with moe.shared above 0 only");
}

/// A field of an enumeration whose values are named in order.
template <class Enum>
RecipeKey named(KeyName name, const std::string& help, Field<Enum> field, std::vector<std::string> names) {
  return {std::move(name), help,
          [field, names](const Recipe& recipe) -> RecipeValue {
            Recipe copy = recipe;
            return names[static_cast<size_t>(field(copy))];
          },
          [field, names](Recipe& recipe, const RecipeValue& value) -> std::string {
            const auto* given = std::get_if<std::string>(&value);
            if (given == nullptr) return is_not(value, "a string");
            const auto found = std::ranges::find(names, *given);
            if (found == names.end()) {
              return not_one_of(*given, names);
            }
            field(recipe) = static_cast<Enum>(found - names.begin());
            return "";
          }};
}

// Accesses a field of the mixture of experts, for reading and writing.
#define FIELD(member) \
  [](Recipe & recipe) -> auto& { return recipe.model.moe.member; }

}  // namespace

std::vector<RecipeKey> moe_keys() {
  return {
      integer({"moe.experts", OnResume::shape},
              "experts in place of each layer's MLP, of model.hidden features each; 0: none", FIELD(experts),
              {0, 1 << 16}),
      with_experts(
          integer({"moe.top_k", OnResume::function}, "experts that a token goes to", FIELD(top_k), {1, 1 << 16})),
      with_experts(named<Gates>({"moe.gates", OnResume::function}, "how scores become gates: softmax, sigmoid",
                                FIELD(gates), {"softmax", "sigmoid"})),
      with_experts(boolean({"moe.normalize", OnResume::function}, "the gates of a token are divided by their sum",
                           FIELD(normalize))),
      with_experts(integer({"moe.shared", OnResume::shape},
                           "features of an expert that every token goes to as well; 0: none", FIELD(shared_hidden),
                           {0, 1 << 22})),
      with_shared(boolean({"moe.shared_gate", OnResume::shape},
                          "the shared expert has a gate, the sigmoid of a separate score", FIELD(shared_gate))),
      with_experts(real({"moe.capacity", OnResume::history},
                        "copies of a sequence's tokens that an expert takes in training, as a multiple of an even "
                        "share; 0: all",
                        FIELD(capacity), {0, 1e6})),
      only_with(
          named<BalanceScope>({"moe.balance", OnResume::listed},
                              "over what experts are balanced: each sequence, or the step's batch", FIELD(balance),
                              {"sequence", "batch"}),
          [](const Recipe& recipe) { return recipe.model.moe.is_used() && recipe.model.moe.balance_loss > 0; },
          "is used with moe.experts and moe.balance_loss above 0 only"),
      with_experts(real({"moe.balance_loss", OnResume::listed}, "factor of the balance loss; 0: none",
                        FIELD(balance_loss), {0, 1e3})),
      with_experts(real({"moe.z_loss", OnResume::listed}, "factor of the squares of the router's log-sum-exps; 0: none",
                        FIELD(z_loss), {0, 1e3})),
  };
}

#undef FIELD

}  // namespace caravan
