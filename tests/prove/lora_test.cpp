/// Adapters under every technique against one process: frozen and trained weights, factors split or whole.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/prove/prove.h"
#include "caravan/recipe/recipe.h"
#include "tests/needs.h"
#include "tests/ranks/rank_case.h"

namespace caravan::testing::lora_test {
namespace {

struct LoraCase {
  const char* name;
  const char* recipe;  ///< added to the model's keys
};

void PrintTo(const LoraCase& what, std::ostream* out) { *out << what.name; }

constexpr LoraCase kCases[] = {
    {"one_rank", "[mesh]\ndp = 1"},
    {"ddp", "[mesh]\ndp = 3"},
    {"zero2_accumulated", "[data_parallel]\ntechnique = \"zero2\"\n[train]\nglobal_batch = 12\nmicro_batch = 2"},
    {"zero3_small_units",
     "[data_parallel]\ntechnique = \"zero3\"\nunits = \"blocks.*.attention\"\nshare = \"off\"\n[mesh]\ndp = 4"},
    {"hsdp", "[data_parallel]\ntechnique = \"hsdp\"\nshard = 2\n[mesh]\ndp = 4"},
    {"servers", "[data_parallel]\ntechnique = \"param_server\"\n[mesh]\ndp = 3"},
    {"tp2", "[mesh]\ntp = 2"},
    {"tp3_sequence", "context = 129\n[mesh]\ntp = 3\n[tensor_parallel]\nsequence = true"},
    {"tp4_shared_heads", "[mesh]\ntp = 4"},
    {"2d", "[mesh]\ntp = 4\n[tensor_parallel]\nkind = \"2d\""},
    {"2.5d", "[mesh]\ntp = 8\n[tensor_parallel]\nkind = \"2.5d\"\ndepth = 2"},
    {"ring", "[mesh]\ncp = 2"},
    {"ulysses_tp2", "[mesh]\ncp = 2\ntp = 2\n[context_parallel]\nkind = \"ulysses\""},
    {"1f1b_tp2_zero1", "[mesh]\npp = 2\ntp = 2\ndp = 2\n[data_parallel]\ntechnique = \"zero1\""},
    {"zero_bubble", "[mesh]\npp = 2\n[pipeline]\nschedule = \"zb-h1\""},
    {"recompute", "[memory]\nrecompute = \"full\"\n[mesh]\ntp = 2"},
    {"bf16", "[precision]\ncompute = \"bf16\""},
};

class Adapters : public ::testing::TestWithParam<LoraCase> {};

INSTANTIATE_TEST_SUITE_P(Techniques, Adapters, ::testing::ValuesIn(kCases), [](const auto& info) {
  std::string name = info.param.name;
  std::erase(name, '.');
  return name;
});

TEST_P(Adapters, Hold) {
  needs_chosen_in(GetParam().recipe);
  const int heads = std::string(GetParam().name).starts_with("tp3") ? 6 : 4;
  for (const char* model : {"kind = \"gpt2\"\ndropout = 0.1", "kind = \"llama\"\nkv_heads = 2"}) {
    const Recipe recipe =
        parse_recipe(fmt::format("[lora]\nrank = 8\ntargets = [\"*\"]\n[model]\n{}\nheads = {}\nwidth = {}\n{}", model,
                                 heads, 8 * heads, GetParam().recipe),
                     "recipe.toml");
    const ProveCase what = prove_case(recipe);
    SCOPED_TRACE(what.to_string());
    const Proof proof = prove(what);
    EXPECT_TRUE(proof.holds()) << proof.to_string();
  }
}

TEST(AdapterRules, TrainNothingElse) {
  const ModelConfig config = shrunken({.lora = {.rank = 4, .targets = {"query", "blocks.1.mlp.*"}}});
  const auto model = make_model(config);
  int64_t all = 0, trained = 0;
  std::vector<std::string> names;
  for (const Parameter* parameter : model->parameters()) {
    all += parameter->num_elements();
    if (!parameter->requires_grad()) continue;
    trained += parameter->num_elements();
    names.push_back(parameter->name());
  }
  EXPECT_EQ(all, config.num_parameters());
  EXPECT_EQ(trained, 2 * 4 * (16 + 16) + 2 * 4 * (16 + 64));
  EXPECT_EQ(names.size(), 8);
  EXPECT_EQ(names.front(), "blocks.0.attention.query.lora.a.weight");
}

TEST(AdapterRules, InvalidOnesAreRefused) {
  needs({"1d", "2d", "3d"});
  const auto refusal = [](const std::string& keys) {
    return error_of<UsageError>([&] {
      const Recipe recipe = parse_recipe("[lora]\n" + keys, "my.toml");
      plan_batch(recipe, recipe_ranks(recipe));
    });
  };
  EXPECT_NE(refusal("rank = 4\ntargets = [\"qeury\"]").find("the nearest is 'query'"), std::string::npos);
  EXPECT_NE(refusal("rank = 4\ntargets = []").find("chooses no layer"), std::string::npos);
  EXPECT_NE(refusal("rank = 4\nalpha = 0").find("lora.alpha"), std::string::npos);
  EXPECT_NE(refusal("rank = -1").find("lora.rank"), std::string::npos);
  EXPECT_NE(refusal("alpha = 4").find("lora.rank above 0"), std::string::npos);
  EXPECT_NE(refusal("adapter = \"x\"").find("set train.init_from"), std::string::npos);
  const std::string grid = "rank = 3\n[model]\nheads = 4\nwidth = 32\n[mesh]\ntp = ";
  EXPECT_NE(refusal(grid + "4\n[tensor_parallel]\nkind = \"2d\"").find("rank of 2 or 4"), std::string::npos);
  EXPECT_NE(refusal(grid + "8\n[tensor_parallel]\nkind = \"3d\"").find("use \"1d\""), std::string::npos);
}

}  // namespace
}  // namespace caravan::testing::lora_test
