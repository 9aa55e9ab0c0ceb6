/// Losses of pairs under every technique against one process: what a token's gradient is depends on its whole pair.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "caravan/prove/prove.h"
#include "caravan/recipe/recipe.h"
#include "tests/needs.h"
#include "tests/prove/expect_holds.h"

namespace caravan::testing::preference_test {
namespace {

struct PreferenceCase {
  const char* name;
  const char* recipe;
};

void PrintTo(const PreferenceCase& what, std::ostream* out) { *out << what.name; }

constexpr PreferenceCase kCases[] = {
    {"one_rank", "[mesh]\ndp = 1"},
    {"ddp", "[mesh]\ndp = 2"},
    {"dp3_odd", "[mesh]\ndp = 3\n[train]\nglobal_batch = 27\nmicro_batch = 3"},
    {"one_pair_at_a_time", "[mesh]\ndp = 2\n[train]\nglobal_batch = 6\nmicro_batch = 1"},
    {"zero1", "[data_parallel]\ntechnique = \"zero1\"\n[mesh]\ndp = 2"},
    {"zero3", "[data_parallel]\ntechnique = \"zero3\"\nshare = \"off\"\n[mesh]\ndp = 2"},
    {"servers", "[data_parallel]\ntechnique = \"param_server\"\n[mesh]\ndp = 3"},
    {"tp2", "[mesh]\ntp = 2"},
    {"tp2_sequence", "[mesh]\ntp = 2\n[tensor_parallel]\nsequence = true"},
    {"dp2_tp2", "[mesh]\ndp = 2\ntp = 2"},
    {"pp2", "[mesh]\npp = 2"},
    {"zero_bubble", "[mesh]\npp = 2\n[pipeline]\nschedule = \"zb-h1\""},
    {"zero_bubble_v", "layers = 4\n[mesh]\npp = 2\n[pipeline]\nschedule = \"zb-v\""},
    {"pp2_dp2", "[mesh]\npp = 2\ndp = 2\n[data_parallel]\ntechnique = \"zero1\""},
    {"measured", "[mesh]\ndp = 3\n[train]\nbalance = \"measured\"\nglobal_batch = 48\nmicro_batch = 8"},
    {"recompute", "[memory]\nrecompute = \"full\"\n[mesh]\ndp = 2"},
    {"experts", "[moe]\nexperts = 4\n[mesh]\ndp = 2"},
    {"experts_of_the_batch", "[moe]\nexperts = 4\nbalance = \"batch\"\n[mesh]\ndp = 2\ntp = 2"},
    {"hsdp", "[data_parallel]\ntechnique = \"hsdp\"\nshard = 2\n[mesh]\ndp = 4"},
    {"tiles", "[tiling]\ntiles = 3\n[data_parallel]\ntechnique = \"zero3\"\nshare = \"off\"\n[mesh]\ndp = 2"},
    {"tiles_tp2", "[tiling]\ntiles = 3\n[mesh]\ntp = 2"},
};

class Pairs : public ::testing::TestWithParam<PreferenceCase> {};

INSTANTIATE_TEST_SUITE_P(Techniques, Pairs, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

TEST_P(Pairs, Hold) {
  needs_chosen_in(GetParam().recipe);
  for (const char* task : {"[preference]\nlabel_smoothing = 0.1\n[model]\nkind = \"gpt2\"\ndropout = 0.1",
                           "[preference]\nloss = \"ipo\"\nbeta = 0.5\n[model]\nkind = \"llama\"\nkv_heads = 2"}) {
    const Recipe recipe = parse_recipe(
        fmt::format("[data]\ntask = \"preference\"\n{}\nheads = 4\nwidth = 32\n{}", task, GetParam().recipe),
        "recipe.toml");
    ProveCase what = prove_case(recipe);
    expect_holds(what);
    what.dtype = at::kDouble;  // within 1e-10
    expect_holds(what);
  }
}

TEST(PairsOfAdapters, Hold) {
  const Recipe recipe = parse_recipe(
      "[data]\ntask = \"preference\"\n[lora]\nrank = 4\ntargets = [\"*\"]\n[mesh]\ndp = 2\ntp = 2\n[model]\nkind = "
      "\"llama\"",
      "recipe.toml");
  expect_holds(prove_case(recipe));
}

TEST(PairsInBf16, Hold) {
  expect_holds(prove_case(
      parse_recipe("[data]\ntask = \"preference\"\n[mesh]\ndp = 2\n[precision]\ncompute = \"bf16\"", "recipe.toml")));
}

}  // namespace
}  // namespace caravan::testing::preference_test
