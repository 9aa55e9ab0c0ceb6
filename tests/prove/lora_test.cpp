/// Adapters under every technique against one process: frozen and trained weights, factors split or whole.

#include "caravan/nn/lora.h"

#include <map>
#include <set>

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/comm/record.h"
#include "caravan/models/model.h"
#include "caravan/prove/prove.h"
#include "caravan/recipe/recipe.h"
#include "tests/needs.h"
#include "tests/ranks/rank_case.h"

namespace caravan::testing::lora_test {
namespace {

struct LoraCase {
  const char* name;
  const char* recipe;     ///< added to the model's keys
  const char* lora = "";  ///< added to those of adapters
};

constexpr const char* kDora = "dora = true\nrslora = true";
constexpr const char* kDropped = "dropout = 0.2";
constexpr const char* kAll = "dora = true\nrslora = true\ndropout = 0.2\nmodules_to_save = [\"embedding\", \"head\"]";

void PrintTo(const LoraCase& what, std::ostream* out) { *out << what.name; }

/// Adapters of experts, too.
constexpr LoraCase kExperts[] = {
    {"one_rank", "[mesh]\ndp = 1", "rslora = true"},
    {"ddp", "[mesh]\ndp = 2"},
    {"ep2", "[mesh]\nep = 2"},
    {"ep2_dp2_zero1", "[mesh]\nep = 2\ndp = 2\n[data_parallel]\ntechnique = \"zero1\""},
    {"ep2_zero2", "[mesh]\nep = 2\ndp = 2\n[data_parallel]\ntechnique = \"zero2\""},
    {"zero3", "[data_parallel]\ntechnique = \"zero3\"\nshare = \"off\"\n[mesh]\ndp = 2"},
    {"zero3_ep2_kept", "[data_parallel]\ntechnique = \"zero3\"\nshare = \"off\"\n[mesh]\ndp = 2\nep = 2",
     "keep_frozen = true"},
    {"zero3_units",
     "[data_parallel]\ntechnique = \"zero3\"\nunits = \"blocks.*.mlp.experts\"\nshare = "
     "\"off\"\n[mesh]\ndp = 2"},
    {"pp2", "[mesh]\npp = 2\n[train]\nglobal_batch = 12\nmicro_batch = 2"},
    {"pp2_ep2_zero_bubble", "[mesh]\npp = 2\nep = 2\n[pipeline]\nschedule = \"zb-h1\""},
    {"tp2", "[mesh]\ntp = 2"},
    {"tp2_ep2_sequence", "[mesh]\ntp = 2\nep = 2\n[tensor_parallel]\nsequence = true"},
    {"cp2", "[mesh]\ncp = 2"},
    {"tiles", "[tiling]\ntiles = 2\n[data_parallel]\ntechnique = \"zero3\"\nshare = \"off\"\n[mesh]\ndp = 2"},
    {"tiles_ep2", "[tiling]\ntiles = 2\n[mesh]\nep = 2"},
    {"recompute", "[memory]\nrecompute = \"full\"\n[mesh]\nep = 2"},
    {"bf16", "[precision]\ncompute = \"bf16\"\n[mesh]\nep = 2"},
};

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
    {"3d", "[mesh]\ntp = 8\n[tensor_parallel]\nkind = \"3d\""},
    {"ring", "[mesh]\ncp = 2"},
    {"ulysses_tp2", "[mesh]\ncp = 2\ntp = 2\n[context_parallel]\nkind = \"ulysses\""},
    {"1f1b_tp2_zero1", "[mesh]\npp = 2\ntp = 2\ndp = 2\n[data_parallel]\ntechnique = \"zero1\""},
    {"zero_bubble", "[mesh]\npp = 2\n[pipeline]\nschedule = \"zb-h1\""},
    {"recompute", "[memory]\nrecompute = \"full\"\n[mesh]\ntp = 2"},
    {"bf16", "[precision]\ncompute = \"bf16\""},
    {"dora_ddp", "[mesh]\ndp = 2", kDora},
    {"dora_zero1", "[data_parallel]\ntechnique = \"zero1\"\n[mesh]\ndp = 2", kDora},
    {"dora_tp2", "[mesh]\ntp = 2", kDora},
    {"dora_tp3_sequence", "context = 129\n[mesh]\ntp = 3\n[tensor_parallel]\nsequence = true", kDora},
    {"dora_tp4_shared_heads", "[mesh]\ntp = 4", kDora},
    {"dropout_ddp", "[mesh]\ndp = 3", kDropped},
    {"dropout_tp2_sequence", "[mesh]\ntp = 2\n[tensor_parallel]\nsequence = true", kDropped},
    {"dropout_2d", "[mesh]\ntp = 4\n[tensor_parallel]\nkind = \"2d\"", kDropped},
    {"dropout_3d", "[mesh]\ntp = 8\n[tensor_parallel]\nkind = \"3d\"", kDropped},
    {"dropout_cp2", "[mesh]\ncp = 2", kDropped},
    {"dropout_pp2", "[mesh]\npp = 2\n[train]\nglobal_batch = 12\nmicro_batch = 2", kDropped},
    {"all_zero2", "[data_parallel]\ntechnique = \"zero2\"\n[train]\nglobal_batch = 12\nmicro_batch = 2", kAll},
    {"all_zero3", "[data_parallel]\ntechnique = \"zero3\"\nshare = \"off\"\n[mesh]\ndp = 2", kAll},
    {"all_cp2", "[mesh]\ncp = 2", kAll},
    {"all_ulysses_tp2", "[mesh]\ncp = 2\ntp = 2\n[context_parallel]\nkind = \"ulysses\"", kAll},
    {"all_pp2", "[mesh]\npp = 2", kAll},
    {"all_dp2_tp2", "[mesh]\ndp = 2\ntp = 2", kAll},
    {"all_1f1b_tp2_zero1", "[mesh]\npp = 2\ntp = 2\ndp = 2\n[data_parallel]\ntechnique = \"zero1\"", kAll},
    {"all_zero_bubble", "[mesh]\npp = 2\n[pipeline]\nschedule = \"zb-h1\"", kAll},
    {"all_recompute", "[memory]\nrecompute = \"full\"\n[mesh]\ntp = 2", kAll},
    {"all_bf16", "[precision]\ncompute = \"bf16\"", kAll},
    {"saved_2d", "[mesh]\ntp = 4\n[tensor_parallel]\nkind = \"2d\"", "modules_to_save = [\"embedding\", \"head\"]"},
    {"keep_frozen", "[data_parallel]\ntechnique = \"zero3\"\nshare = \"off\"\n[mesh]\ndp = 2", "keep_frozen = true"},
    {"keep_frozen_bf16_tp2",
     "[data_parallel]\ntechnique = \"zero3\"\nshare = \"off\"\n[mesh]\ndp = 2\ntp = 2\n[precision]\ncompute = "
     "\"bf16\"",
     "keep_frozen = true"},
    {"keep_frozen_hsdp", "[data_parallel]\ntechnique = \"hsdp\"\nshard = 2\nshare = \"off\"\n[mesh]\ndp = 4",
     "keep_frozen = true"},
};

class Adapters : public ::testing::TestWithParam<LoraCase> {};

INSTANTIATE_TEST_SUITE_P(Techniques, Adapters, ::testing::ValuesIn(kCases), [](const auto& info) {
  std::string name = info.param.name;
  std::erase(name, '.');
  return name;
});

TEST_P(Adapters, Hold) {
  needs_chosen_in(GetParam().recipe);
  const int heads = std::string(GetParam().name).find("tp3") != std::string::npos ? 6 : 4;
  for (const char* model : {"kind = \"gpt2\"\ndropout = 0.1", "kind = \"llama\"\nkv_heads = 2"}) {
    const Recipe recipe =
        parse_recipe(fmt::format("[lora]\nrank = 8\ntargets = [\"*\"]\n{}\n[model]\n{}\nheads = {}\nwidth = {}\n{}",
                                 GetParam().lora, model, heads, 8 * heads, GetParam().recipe),
                     "recipe.toml");
    ProveCase what = prove_case(recipe);
    what.finds_summands = what.compute_dtype == at::kFloat;  // as prove_recipe()
    SCOPED_TRACE(what.to_string());
    const Proof proof = prove(what);
    EXPECT_TRUE(proof.holds()) << proof.to_string();
  }
}

class AdaptersOfExperts : public ::testing::TestWithParam<LoraCase> {};

INSTANTIATE_TEST_SUITE_P(Techniques, AdaptersOfExperts, ::testing::ValuesIn(kExperts),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(AdaptersOfExperts, Hold) {
  needs_chosen_in(GetParam().recipe);
  for (const char* model : {"kind = \"gpt2\"", "kind = \"llama\"\nkv_heads = 2"}) {
    const Recipe recipe = parse_recipe(
        fmt::format("[lora]\nrank = 8\ntargets = [\"*\"]\n{}\n[moe]\nexperts = 8\nshared = 16\n[model]\n{}\nheads = "
                    "4\nwidth = 32\nhidden = 48\n{}",
                    GetParam().lora, model, GetParam().recipe),
        "recipe.toml");
    ProveCase what = prove_case(recipe);
    what.finds_summands = what.compute_dtype == at::kFloat;  // as prove_recipe()
    SCOPED_TRACE(what.to_string());
    const Proof proof = prove(what);
    EXPECT_TRUE(proof.holds()) << proof.to_string();
  }
}

TEST(AdapterRules, EachExpertHasItsOwn) {
  ModelConfig config = shrunken({.arch = Architecture::llama(), .moe = {.experts = 4}});
  config.hidden = 12;
  config.lora = {.rank = 3, .targets = {"experts.*"}};
  const auto model = make_model(config);
  std::map<std::string, std::vector<int64_t>> trained;
  int64_t all = 0;
  for (const Parameter* parameter : model->parameters()) {
    all += parameter->num_elements();
    if (parameter->requires_grad()) trained[parameter->name()] = parameter->global_shape();
  }
  EXPECT_EQ(all, config.num_parameters());
  EXPECT_EQ(adapter_parameters(config), 2 * 4 * 3 * 3 * (16 + 12));
  EXPECT_EQ(adapter_parameters_of_token(config), adapter_parameters(config) / 2);
  EXPECT_EQ(trained.size(), 12);
  EXPECT_EQ(trained.at("blocks.1.mlp.experts.lora.up.a"), (std::vector<int64_t>{4 * 3, 16}));
  EXPECT_EQ(trained.at("blocks.1.mlp.experts.lora.down.b"), (std::vector<int64_t>{4 * 16, 3}));
}

TEST(AdapterRules, ThoseOfExpertsAreNoUnits) {
  const ProveCase what = prove_case(parse_recipe(
      "[lora]\nrank = 4\ntargets = [\"experts.*\"]\n[moe]\nexperts = 4\n[mesh]\ndp = 2\n[data_parallel]\ntechnique = "
      "\"zero3\"\nshare = \"off\"\nunits = [\"*.experts.lora.up\"]",
      "recipe.toml"));
  EXPECT_NE(error_of<UsageError>([&] { prove(what); }).find("*.mlp.experts"), std::string::npos);
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

TEST(AdapterRules, MagnitudesStartAsTheNormsOfTheirRows) {
  ModelConfig config = shrunken({.lora = {.rank = 4, .targets = {"query", "mlp.down"}}});
  config.lora.dora = true;
  const auto model = make_model(config);
  int64_t all = 0;
  for (const Parameter* parameter : model->parameters()) all += parameter->num_elements();
  EXPECT_EQ(all, config.num_parameters());
  model->materialise(Mesh::create(make_record_world(0, 1), {{"dp", 1}}), {}, {.seed = 3});
  std::map<std::string, at::Tensor> values;
  for (const Parameter* parameter : model->parameters()) values[parameter->name()] = parameter->sharded().detach();
  int found = 0;
  for (const auto& [name, value] : values) {
    const std::string weight = weight_of_magnitude(name);
    if (weight.empty()) continue;
    ++found;
    EXPECT_TRUE(at::allclose(value, values.at(weight).square().sum(-1).sqrt(), 1e-6)) << name;
  }
  EXPECT_EQ(found, 4);
}

TEST(AdapterRules, SavedModulesAreTrainedWhole) {
  ModelConfig config = shrunken({.lora = {.rank = 4, .targets = {"query"}}});
  config.tie_embeddings = false;
  config.lora.saved = {"embedding", "head"};
  std::set<std::string> trained;
  const auto model = make_model(config);
  for (const Parameter* parameter : model->parameters()) {
    if (parameter->requires_grad() && !is_of_adapter(parameter->name())) trained.insert(parameter->name());
  }
  EXPECT_EQ(trained, (std::set<std::string>{"embedding.token.weight", "head.weight"}));
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
  const std::string experts = "[moe]\nexperts = 4";
  EXPECT_NE(refusal("rank = 4\ntargets = [\"experts.dwon\"]\n" + experts).find("mlp.experts.down"), std::string::npos);
  EXPECT_NE(refusal("rank = 4\ntargets = [\"*\"]\ndropout = 0.1\n" + experts).find("lora.dropout = 0"),
            std::string::npos);
  EXPECT_NE(refusal("rank = 4\ntargets = [\"up\"]\ndora = true\n" + experts).find("lora.dora = false"),
            std::string::npos);
  EXPECT_NO_THROW(parse_recipe("[lora]\nrank = 4\ntargets = [\"attention.*\"]\ndropout = 0.1\n" + experts, "my.toml"));
  const std::string without = "rank = 4\nexperts = false\n";
  EXPECT_NO_THROW(parse_recipe("[lora]\n" + without + "targets = [\"*\"]\ndora = true\n" + experts, "my.toml"));
  EXPECT_NE(refusal(without + "targets = [\"mlp.*\"]\n" + experts).find("use lora.experts = true"), std::string::npos);
  EXPECT_NE(refusal(without).find("of a model with experts only"), std::string::npos);
  EXPECT_NE(refusal("rank = 4\ntargets = []").find("chooses no layer"), std::string::npos);
  EXPECT_NE(refusal("rank = 4\nalpha = 0").find("lora.alpha"), std::string::npos);
  EXPECT_NE(refusal("rank = -1").find("lora.rank"), std::string::npos);
  EXPECT_NE(refusal("alpha = 4").find("lora.rank above 0"), std::string::npos);
  for (const char* key : {"dropout = 0.1", "rslora = true", "dora = true", "modules_to_save = [\"head\"]"}) {
    EXPECT_NE(refusal(key).find("lora.rank above 0"), std::string::npos) << key;
  }
  EXPECT_NE(refusal("rank = 4\ndropout = 1.0").find("lora.dropout"), std::string::npos);
  EXPECT_NE(refusal("rank = 4\nmodules_to_save = [\"haed\"]").find("use 'head'"), std::string::npos);
  EXPECT_NE(refusal("rank = 4\nmodules_to_save = [\"head\"]").find("name both"), std::string::npos);
  EXPECT_NE(refusal("rank = 4\nkeep_frozen = true").find("lora.keep_frozen"), std::string::npos);
  EXPECT_NE(refusal("adapter = \"x\"").find("set train.init_from"), std::string::npos);
  const std::string grid = "rank = 3\n[model]\nheads = 4\nwidth = 32\n[mesh]\ntp = ";
  EXPECT_NE(refusal(grid + "4\n[tensor_parallel]\nkind = \"2d\"").find("rank of 2 or 4"), std::string::npos);
  std::string with_dora = grid;
  with_dora.replace(with_dora.find("rank = 3"), 8, "rank = 4\ndora = true");
  EXPECT_NE(refusal(with_dora + "4\n[tensor_parallel]\nkind = \"2d\"").find("lora.dora = false"), std::string::npos);
  EXPECT_NE(refusal(grid + "8\n[tensor_parallel]\nkind = \"3d\"").find("rank of 4"), std::string::npos);
}

}  // namespace
}  // namespace caravan::testing::lora_test
