#include "caravan/prove/prove.h"

#include <array>
#include <cmath>
#include <filesystem>
#include <gmock/gmock.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "caravan/base/error.h"
#include "caravan/prove/compare.h"
#include "caravan/recipe/recipe.h"
#include "caravan/redistribute/redistribute.h"
#include "caravan/techniques/data/ddp.h"
#include "tests/data/support.h"
#include "tests/mesh/refusal.h"
#include "tests/needs.h"

namespace caravan::testing::prove_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

/// GPT-2 with tied embeddings, or Llama with grouped heads and untied embeddings.
ModelConfig model_of(Architecture kind) {
  const bool is_gpt2 = kind == Architecture::gpt2();
  // With dropout, other kernels are used.
  return shrunken(
      {.arch = kind, .heads = 4, .kv_heads = is_gpt2 ? 0 : 2, .tie_embeddings = is_gpt2, .dropout = is_gpt2 ? 0 : 0.1});
}

/// Dtypes of the sharded parameters and of the arithmetic: fp64, fp32, bf16.
constexpr std::array<std::pair<at::ScalarType, at::ScalarType>, 3> kDtypes{
    {{at::kDouble, at::kFloat}, {at::kFloat, at::kFloat}, {at::kFloat, at::kBFloat16}}};

/// Small buckets: several reductions a step.
Strategy small_ddp(Model& model, Mesh& mesh) { return ddp(model, mesh, {.bucket_bytes = 2048}); }

ProveCase case_of(Architecture kind, int ranks) {
  return {.name = "ddp", .model = model_of(kind), .axes = {{"dp", ranks}}, .arrange = small_ddp};
}

// ---- what holds ----

class ProveDdp : public ::testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(Ranks, ProveDdp, ::testing::Values(1, 2, 3, 4));

TEST_P(ProveDdp, Holds) {
  for (const Architecture& kind : {Architecture::gpt2(), Architecture::llama()}) {
    for (const int num_micro_batches : {1, 3}) {
      for (const auto& [dtype, compute_dtype] : kDtypes) {
        ProveCase what = case_of(kind, GetParam());
        what.num_micro_batches = num_micro_batches;
        what.dtype = dtype;
        what.compute_dtype = compute_dtype;
        SCOPED_TRACE(what.to_string());
        const Proof proof = prove(what);
        EXPECT_TRUE(proof.holds()) << proof.to_string();
        EXPECT_EQ(proof.num_ranks, GetParam());
        ASSERT_EQ(proof.steps.size(), 3U);
        for (const Proof::Step& step : proof.steps) EXPECT_GT(step.grad_norm, what.clip_norm) << "does not clip";
      }
    }
  }
}

TEST(Prove, PrintsWhatItHasCompared) {
  const ProveCase what = case_of(Architecture::gpt2(), 2);
  EXPECT_EQ(what.to_string(),
            "ddp on dp=2: gpt2 with tied embeddings, 2 layers of width 16, fp64, 1 micro-batch, 3 clipped SGD steps");
  EXPECT_THAT(prove(what).to_string(),
              AllOf(StartsWith("holds: loss, norm, gradients and updates of 36 parameters, 3 steps, 2 ranks; "),
                    HasSubstr("tolerance 1.0e-10")));
}

/// Forward and backward of each micro-batch in turn, on each stage.
std::vector<PassOrder> one_by_one(int num_micro_batches) {
  return {accumulate(num_micro_batches, 0), accumulate(num_micro_batches, 1)};
}

/// Embedding and first block on one rank, second block and head on the other. The first owns a tied weight.
Strategy two_stages(Model& model, Mesh& mesh) {
  Strategy strategy = whole_model(model, mesh);
  add_stages(strategy, mesh, "pp", {0, 0, 1, 1});
  strategy.passes = one_by_one;
  return strategy;
}

TEST(Prove, HoldsForStagesOnTwoRanks) {
  for (const Architecture& kind : {Architecture::gpt2(), Architecture::llama()}) {
    ProveCase what = case_of(kind, 2);
    what.axes = {{"dp", 2}, {"pp", 2}};
    what.num_micro_batches = 3;
    what.arrange = [](Model& model, Mesh& mesh) {
      Strategy strategy = two_stages(model, mesh);
      add_ddp(strategy, mesh);
      return strategy;
    };
    const Proof proof = prove(what);
    EXPECT_TRUE(proof.holds()) << proof.to_string();
  }
}

/// The columns of the first matrices of every MLP and the rows of the last over axis tp. The plan's hooks are kept.
Arrangement split_mlp(Model& model, Mesh& mesh) {
  const auto tp = [](const Placement& placement) { return Layout{{"tp", placement}}; };
  const bool has_bias = model.config().arch == Architecture::gpt2();
  Plan plan{
      .name = "split_mlp",
      .axes = {"tp"},
      .rows = {{.pattern = "*.mlp", .inputs = {tp(Replicate{})}},
               {.pattern = "*.mlp.up", .parameters = {{"weight", tp(Shard{0})}}},
               {.pattern = "*.mlp.down", .parameters = {{"weight", tp(Shard{1})}}, .outputs = {tp(Invariant{})}}}};
  if (has_bias) {
    plan.rows[1].parameters.push_back({"bias", tp(Shard{0})});
    plan.rows[2].parameters.push_back({"bias", tp(Invariant{}), tp(Invariant{}), tp(Partial{})});
  } else {
    plan.rows.push_back({.pattern = "*.mlp.gate", .parameters = {{"weight", tp(Shard{0})}}});
  }
  const std::vector<int64_t> shape{2, model.config().context};
  Strategy strategy = whole_model(model, mesh);
  add_plan(strategy, std::make_shared<AppliedPlan>(apply(plan, model, mesh, {shape, shape})));
  add_ddp(strategy, mesh);
  return strategy;
}

TEST(Prove, HoldsForSplitWeights) {
  for (const Architecture& kind : {Architecture::gpt2(), Architecture::llama()}) {
    for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
      ProveCase what = case_of(kind, 2);
      what.axes = {{"dp", 2}, {"tp", 2}};
      what.num_micro_batches = 2;
      what.arrange = split_mlp;
      what.dtype = dtype;
      SCOPED_TRACE(what.to_string());
      const Proof proof = prove(what);
      EXPECT_TRUE(proof.holds()) << proof.to_string();
    }
  }
}

/// Roundings that differ from those of one process hide one missing summand among many.
TEST(Prove, RefusesSplitWeightsInBf16WithManySummands) {
  ProveCase what = case_of(Architecture::llama(), 2);
  what.axes = {{"dp", 2}, {"tp", 2}};
  what.num_micro_batches = 3;
  what.arrange = split_mlp;
  what.dtype = at::kFloat;
  what.compute_dtype = at::kBFloat16;
  EXPECT_THAT(refusal<UsageError>([&] { (void)prove(what); }), HasSubstr("a missing summand in the gradient of"));
}

// ---- recipes ----

TEST(Prove, HoldsForEveryRecipe) {
  int num_recipes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(CARAVAN_SOURCE_DIR "/recipes")) {
    if (entry.path().extension() != ".toml") continue;
    ++num_recipes;
    needs_chosen_in(read_file(entry.path()));
    for (const char* precision : {"precision.compute=fp32", "precision.compute=bf16"}) {
      // If the model is not available, only the arrangement.
      ProveCase what = prove_case(load_recipe(entry.path(), {precision, "train.init_from="}));
      what.finds_summands = what.compute_dtype == at::kFloat;  // as prove_recipe()
      const Proof proof = prove(what);
      EXPECT_TRUE(proof.holds()) << entry.path() << ", " << what.to_string() << ": " << proof.to_string();
    }
  }
  EXPECT_GT(num_recipes, 0);
}

TEST(Prove, ShrinksARecipe) {
  needs({"ddp", "topk", "powersgd"});
  const auto shrinks = [](const std::vector<std::string>& overrides) {
    return prove_case(load_recipe("", overrides)).to_string();
  };
  EXPECT_EQ(shrinks({}),
            "ddp on dp=2: gpt2 with tied embeddings, 2 layers of width 16, fp32, 1 micro-batch, 3 clipped SGD steps");
  const std::vector<std::string> many{"train.global_batch=128", "train.micro_batch=2", "precision.compute=bf16",
                                      "model.kind=llama",       "model.kv_heads=2",    "model.tie_embeddings=false"};
  const auto on = [&](const std::string& dp) {
    std::vector<std::string> keys = many;
    keys.push_back("mesh.dp=" + dp);
    return shrinks(keys);
  };
  EXPECT_EQ(on("8"), "ddp on dp=8: llama, 2 layers of width 16, bf16, 3 micro-batches, 3 clipped SGD steps");
  EXPECT_EQ(on("16"), "ddp on dp=2: llama, 2 layers of width 16, bf16, 3 micro-batches, 3 clipped SGD steps");
  for (const std::vector<std::string>& keys : std::vector<std::vector<std::string>>{{"precision.gradients=bf16"},
                                                                                    {"precision.reduce=fp16"},
                                                                                    {"data_parallel.hook=topk"},
                                                                                    {"data_parallel.hook=powersgd"},
                                                                                    {"precision.reduce=bf16"}}) {
    const ProveCase what = prove_case(load_recipe("", keys));
    EXPECT_THAT(what.name, HasSubstr("ddp without ")) << keys.front();
    EXPECT_TRUE(prove(what).holds()) << keys.front();
  }
  EXPECT_EQ(prove_case(load_recipe("", {"mesh.dp=3"})).axes.front().size, 3);
  EXPECT_EQ(shrunken({.arch = Architecture::llama(), .heads = 8, .kv_heads = 2}).num_kv_heads(), 2);
  EXPECT_THAT(refusal<UsageError>([&] { shrinks({"mesh.dp=5"}); }), HasSubstr("has no solution"));
}

// ---- wrong techniques ----

Parameter& parameter_of(Model& model, const std::string& name) {
  for (Parameter* parameter : model.parameters()) {
    if (parameter->name() == name) return *parameter;
  }
  throw InternalError({"test", name, "no parameter has this name", "", ""});
}

/// The unsharded parameter is whole and counts once. The layers take it as R: backward sums its gradient over the axis.
void sum_over(const MeshAxis& axis, Parameter& parameter) {
  const Layout once{{axis.name(), Invariant{}}};
  parameter.set_derivation([axis, once](const at::Tensor& leaf) { return redistribute(leaf, once, axis, Replicate{}); },
                           once.moved(axis.name(), Replicate{}));
}

TEST(ProveFinds, AReductionDoneTwice) {
  ProveCase what = case_of(Architecture::gpt2(), 2);
  what.num_micro_batches = 2;
  what.arrange = [](Model& model, Mesh& mesh) {
    sum_over(mesh["dp"], parameter_of(model, "blocks.1.mlp.up.weight"));
    return small_ddp(model, mesh);
  };
  const Proof proof = prove(what);
  EXPECT_EQ(proof.to_string(),
            "step 1: gradient of blocks.1.mlp.up.weight is 2.000 times that of one process on rank 0 of 2 (dp=0)");
  EXPECT_EQ(proof.steps.size(), 1U);
  EXPECT_EQ(proof.steps[0].worst, "gradient of blocks.1.mlp.up.weight");
}

/// Also in bf16, within the tolerance of its arithmetic.
TEST(ProveFinds, AReductionThatIsMissing) {
  for (const at::ScalarType compute_dtype : {at::kFloat, at::kBFloat16}) {
    ProveCase what = case_of(Architecture::llama(), 3);
    what.dtype = at::kFloat;
    what.compute_dtype = compute_dtype;
    what.arrange = [](Model& model, Mesh& mesh) {
      Strategy strategy = small_ddp(model, mesh);
      Layout& leaf = strategy.layouts.at("blocks.0.attention.key.weight").unsharded;
      leaf = leaf.moved("dp", Invariant{});
      return strategy;
    };
    const Proof proof = prove(what);
    ASSERT_FALSE(proof.holds());
    EXPECT_EQ(proof.first->what, "gradient of blocks.0.attention.key.weight");
    EXPECT_EQ(proof.first->num_others, 0);
    EXPECT_FALSE(proof.first->factor.has_value());
    EXPECT_GT(proof.first->error, 0.1);
    EXPECT_THAT(proof.to_string(), HasSubstr("key.weight differs from that of one process by "));
  }
}

TEST(ProveFinds, AMeanInsteadOfASum) {
  ProveCase what = case_of(Architecture::llama(), 2);
  what.arrange = [](Model& model, Mesh& mesh) {
    const auto mean = [ranks = mesh.size()](Module&, Tensors inputs, const ForwardContext& context, const Next& next) {
      ForwardContext own = context;
      own.loss_scale /= ranks;
      return next(std::move(inputs), own);
    };
    return Arrangement(small_ddp(model, mesh), std::make_shared<Hook>(model.add_hook(mean)));
  };
  EXPECT_THAT(prove(what).to_string(), StartsWith("step 1: loss is 0.500 times that of one process"));

  what.arrange = [](Model& model, Mesh& mesh) {  // the loss is right, the gradients are not
    for (Parameter* parameter : model.parameters()) {
      parameter->set_derivation([](const at::Tensor& leaf) { return leaf * 0.5 + leaf.detach() * 0.5; },
                                Layout::all(mesh, Replicate{}));
    }
    return small_ddp(model, mesh);
  };
  const Proof proof = prove(what);
  EXPECT_THAT(proof.to_string(),
              AllOf(StartsWith("step 1: gradient of embedding.token.weight is 0.500 times that of one process"),
                    HasSubstr("and " + std::to_string(proof.num_parameters - 1) + " more differ")));
}

/// The stages of both uses reduce it: once by the engine, once more between weight and use.
TEST(ProveFinds, ATiedWeightThatIsSummedTwice) {
  ProveCase what = case_of(Architecture::gpt2(), 2);
  what.axes = {{"pp", 2}};
  what.arrange = [](Model& model, Mesh& mesh) {
    sum_over(mesh["pp"], parameter_of(model, "embedding.token.weight"));
    return two_stages(model, mesh);
  };
  const Proof proof = prove(what);
  ASSERT_FALSE(proof.holds());
  EXPECT_EQ(proof.first->what, "gradient of embedding.token.weight");
  ASSERT_TRUE(proof.first->factor.has_value());
  EXPECT_NEAR(*proof.first->factor, 2, 1e-9);
}

// ---- what cannot be proved ----

TEST(Prove, ATolerancePassesOnlyIfAFaultWouldExceedItTenfold) {
  ProveCase what = case_of(Architecture::gpt2(), 2);
  what.tolerance = 1e-3;
  EXPECT_TRUE(prove(what).holds());
  what.tolerance = 0.06;
  EXPECT_THAT(refusal<UsageError>([&] { (void)prove(what); }),
              AllOf(HasSubstr("tolerance 0.06"), HasSubstr("less than 10 times as much")));
}

/// A trace of two parameters whose gradients are `factor` times [1, 2, 3] and [4, 4], and a step that does nothing.
StepTrace step_of(double factor) {
  return {.loss = 1,
          .grad_norm = 5,
          .before = {at::ones({3}, at::kDouble), at::ones({2}, at::kDouble)},
          .gradients = {at::tensor({1, 2, 3}, at::kDouble) * factor, at::tensor({4, 4}, at::kDouble) * factor},
          .after = {at::ones({3}, at::kDouble), at::ones({2}, at::kDouble)}};
}

TEST(ProveTolerance, OfSixteenBitsIsWhatOneProcessRoundsAtLeast) {
  ProveCase what = case_of(Architecture::gpt2(), 2);
  what.dtype = at::kFloat;
  what.finds_summands = false;
  const auto tolerance = [&](double rounding) {
    const Trace one{.names = {"a", "b"}, .steps = {step_of(1)}, .exact = {step_of(1 + rounding)}};
    return default_tolerance(one, what);
  };
  what.compute_dtype = at::kBFloat16;
  EXPECT_NEAR(tolerance(1e-3), std::sqrt(96) / 256, 1e-6) << "2 layers";
  EXPECT_NEAR(tolerance(0.05), 1.5 * 0.05 / 1.05, 2e-3);
  EXPECT_NEAR(tolerance(0.5), 0.5 / 5, 1e-2) << "a factor of 1/2 shows fivefold";
  what.compute_dtype = at::kHalf;
  EXPECT_NEAR(tolerance(0.05), 1.5 * 0.05 / 1.05, 2e-3);
  EXPECT_NEAR(tolerance(1e-4), std::sqrt(96) / 2048, 1e-6);
  // Without parts of products all roundings are the same.
  EXPECT_EQ(default_tolerance({.names = {"a", "b"}, .steps = {step_of(1)}}, what), 2e-5);
}

TEST(ProveTolerance, ADifferenceBelowThatOfAnyFaultMayBeRounding) {
  ProveCase what = case_of(Architecture::gpt2(), 2);
  what.dtype = at::kFloat;
  const auto may_be = [&](double first, double largest, const char* name = "gradient of a") {
    Proof proof{.tolerance = 2e-5, .steps = {{.largest_error = 1e-3}, {.largest_error = largest}}};
    proof.first = {.what = name, .step = 1, .where = "rank 0", .error = first};
    return may_be_rounding(proof, what);
  };
  EXPECT_TRUE(may_be(9e-5, 9e-5));
  EXPECT_FALSE(may_be(1.1e-4, 1.1e-4)) << "a fault is ten times the tolerance";
  EXPECT_FALSE(may_be(3e-5, 1.1e-4)) << "a later tensor differs by more";
  EXPECT_FALSE(may_be(3e-5, std::nan("")));
  EXPECT_FALSE(may_be(1e-8, 1e-8, "initial value of a")) << "is not computed";
  EXPECT_FALSE(may_be_rounding({.tolerance = 2e-5}, what)) << "holds";
  what.finds_summands = false;
  EXPECT_FALSE(may_be(6e-5, 6e-5)) << "a factor of 1/2 shows fivefold";
}

/// Gradients of norms nearly cancel, and in some models differ by 5 % from those of one process, as far as that is from
/// fp32.
TEST(ProveTolerance, HoldsForModelsThatRoundWorse) {
  needs({"1d"});
  for (const char* kv_heads : {"0", "2"}) {
    for (const char* seed : {"1", "3", "6", "7"}) {
      const Recipe recipe = parse_recipe(
          "", "r.toml",
          {"model.kind=llama", "mesh.tp=2", "precision.compute=bf16", "model.context=37", "model.vocabulary=512",
           "model.kv_heads=" + std::string(kv_heads), "train.seed=" + std::string(seed)});
      const Proof proof = prove(prove_case(recipe));
      EXPECT_TRUE(proof.holds()) << proof.to_string();
      EXPECT_LE(proof.tolerance, 0.1);
    }
  }
}

TEST(Prove, RefusesAnImpossibleCase) {
  const auto refusal_of = [](const ProveCase& what) { return refusal<UsageError>([&] { (void)prove(what); }); };
  ProveCase what = case_of(Architecture::gpt2(), 2);
  what.num_steps = 0;
  EXPECT_THAT(refusal_of(what), HasSubstr("0 steps of 1 micro-batches"));
  what = case_of(Architecture::gpt2(), 2);
  what.dtype = at::kHalf;
  EXPECT_THAT(refusal_of(what), HasSubstr("use fp64 or fp32"));
  what.dtype = at::kDouble;
  what.compute_dtype = at::kBFloat16;
  EXPECT_THAT(refusal_of(what), HasSubstr("use fp32 parameters"));
  what = case_of(Architecture::gpt2(), 2);
  what.rows = 7;
  EXPECT_THAT(refusal_of(what), HasSubstr("batch"));
  EXPECT_THAT(refusal_of({.axes = {{"dp", 2}}}), HasSubstr("arrange: is not given"));
}

}  // namespace
}  // namespace caravan::testing::prove_test
