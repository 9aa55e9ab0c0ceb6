#include <gtest/gtest.h>

#include "tests/cost/formulas/experts.h"
#include "tests/cost/formulas/memory.h"
#include "tests/techniques/together/technique.h"

namespace caravan::testing::expert_formulas_test {
namespace {

/// Llama: 8 experts of width 96, two for each token, a shared one of width 40 with a gate.
ModelConfig llama() {
  Architecture arch = Architecture::llama();
  arch.qkv_bias = true;
  return {.arch = arch,
          .layers = 3,
          .width = 64,
          .heads = 8,
          .kv_heads = 4,
          .context = 32,
          .vocabulary = 100,
          .hidden = 96,
          .tie_embeddings = false,
          .moe = {.experts = 8, .shared_hidden = 40, .shared_gate = true}};
}
constexpr double kLlamaExpert = 3. * 64 * 96;
constexpr double kLlamaRouter = 8. * 64, kLlamaShared = 3. * 64 * 40, kLlamaGate = 64;
constexpr double kLlamaAttention = 2. * 64 * 64 + 2. * 64 * 32, kLlamaBiases = 64 + 2 * 32, kLlamaNorms = 2. * 64;

ModelConfig gpt2() {
  return {.layers = 2, .width = 64, .heads = 8, .context = 32, .vocabulary = 100, .moe = {.experts = 4, .top_k = 1}};
}
constexpr double kGpt2Expert = 2. * 64 * 256 + 256 + 64;
constexpr double kGpt2Dense = 4. * 64 * 64 + 4. * 64 + 4. * 64 + 4 * 64;  // attention, its biases, norms, router

MemoryShape shape_of(const ModelConfig& model, int64_t ep, int64_t tp = 1) {
  // Statements that may leave the case are before the braces: g++ 12 would destroy the members twice.
  const Split tensor = tensor_of(tp), experts = experts_of(ep);
  return {.model = model, .sequences = 8, .rows = 8, .tensor_parallel = tensor, .expert_parallel = experts};
}

TEST(ExpertFormulas, ParametersMatchTheModel) {
  std::vector<ModelConfig> models{llama(), gpt2()};
  for (const auto change : {+[](ModelConfig& m) { m.moe = {}; }, +[](ModelConfig& m) { m.moe.shared_hidden = 24; },
                            +[](ModelConfig& m) { m.arch.qkv_bias = m.arch.is_gated; },
                            +[](ModelConfig& m) { m.moe.shared_gate = m.moe.has_shared(); }}) {
    for (ModelConfig model : {llama(), gpt2()}) {
      change(model);
      models.push_back(model);
    }
  }
  for (const ModelConfig& model : models) {
    const TensorShape whole{.model = model};
    const double layers = static_cast<double>(model.layers) * layer_weight_elements(whole);
    EXPECT_EQ(layers + outer_weight_elements(whole), static_cast<double>(model.num_parameters()));
    EXPECT_EQ(state_of(shape_of(model, 1)).parameters, static_cast<double>(model.num_parameters()));
  }
  EXPECT_EQ(expert_elements(llama()), 8 * kLlamaExpert);
  EXPECT_EQ(expert_elements(gpt2()), 4 * kGpt2Expert);
  ModelConfig dense = llama();
  dense.moe = {};
  EXPECT_EQ(expert_elements(dense), 0);
}

/// A rank has its part of the experts, and of the matrices that tensor parallelism splits; the router and the shared
/// expert's gate are on every one.
TEST(ExpertFormulas, ARankHasItsExperts) {
  const double words = 2. * 100 * 64, norm = 64;
  for (const int64_t ep : {1, 2, 4}) {
    const auto experts = static_cast<double>(8 / ep);
    const StateShape alone = state_of(shape_of(llama(), ep));
    EXPECT_EQ(alone.parameters, words + norm +
                                    3 * (kLlamaAttention + kLlamaBiases + kLlamaNorms + kLlamaRouter + kLlamaGate +
                                         kLlamaShared + experts * kLlamaExpert));
    const StateShape beside = state_of(shape_of(llama(), ep, 2));
    EXPECT_EQ(beside.parameters, words / 2 + norm +
                                     3 * (kLlamaAttention / 2 + kLlamaBiases / 2 + kLlamaNorms + kLlamaRouter +
                                          kLlamaGate + kLlamaShared / 2 + experts / 2 * kLlamaExpert));
    EXPECT_EQ(beside.largest_unit, (beside.parameters - words / 2 - norm) / 3) << "a layer";
    EXPECT_EQ(beside.experts, 3 * experts / 2 * kLlamaExpert);
    EXPECT_EQ(state_bytes(beside).total(), 16 * beside.parameters) << "fp32 and AdamW";
  }
  const StateShape half = state_of(shape_of(gpt2(), 2));
  EXPECT_EQ(half.parameters, (100. + 32) * 64 + 2 * 64 + 2 * (kGpt2Dense + 2 * kGpt2Expert));
  EXPECT_EQ(state_of(shape_of(gpt2(), 2, 2)).parameters - 66. * 64 - 16 * 64 - 2 * 64,
            2 * (2. * 64 * 64 + 3. * 64 / 2 + 64 + 4 * 64 + 4 * 64 + kGpt2Expert))
      << "half of what is split, and the bias of the attention's output, norms and router";
}

/// ZeRO shards a rank's parameters over dp; gradients of everything but the experts are also summed over ep.
TEST(ExpertFormulas, GradientsOfExpertsStayOnTheirRank) {
  MemoryShape shape = shape_of(llama(), 4);
  const StateShape alone = state_of(shape);
  const double dense = alone.parameters - 3. * 2 * kLlamaExpert;
  EXPECT_EQ(state_traffic(alone).elements, 2 * 3. / 4 * dense);
  shape.ranks = 2;
  EXPECT_EQ(state_traffic(state_of(shape)).elements, alone.parameters + 2 * 3. / 4 * dense);
  shape.data_parallel.technique = "zero2";
  const StateShape sharded = state_of(shape);
  EXPECT_EQ(state_bytes(sharded).optimizer, 8 * alone.parameters / 2);
  EXPECT_EQ(state_traffic(sharded).reduced, alone.parameters);
  shape.context_parallel = context_of("both", 4, {{"exchange", 2}});
  const StateTraffic all = state_traffic(state_of(shape));
  EXPECT_EQ(all.elements - state_traffic(sharded).elements, 2 * alone.parameters / 2) << "a ring of 2, Ulysses of 2";
}

TEST(ExpertFormulas, HooksCompressATableOfExperts) {
  MemoryShape shape = shape_of(llama(), 2);
  shape.data_parallel.hook = "powersgd";
  shape.data_parallel.hook_rank = 1;
  shape.ranks = 2;
  ModelConfig fewer = llama();  // the same but for half of the experts
  fewer.moe.experts = 4;
  MemoryShape other = shape_of(fewer, 1);
  other.data_parallel = shape.data_parallel;
  other.ranks = 2;
  EXPECT_EQ(state_bytes(state_of(shape)).hook - state_bytes(state_of(other)).hook, 4. * 3 * 4 * 64)
      << "4 rows of each router; factors are those of as many columns";
}

TEST(ExpertFormulas, BytesOfALayer) {
  ExpertShape shape{.model = llama(), .ranks = 4, .sequences = 8, .element_bytes = 2};
  const double tokens = 2 * 32;
  EXPECT_EQ(shape.tokens(), tokens);
  EXPECT_EQ(shape.experts(), 2);
  EXPECT_EQ(shape.copies_per_expert(), 8. * 32 * 2 / 8);
  const double copies = 3. / 4 * tokens * 2 * 64 * 2;
  const double counts = 3. / 4 * 8 * 8;
  EXPECT_EQ(expert_bytes(shape).forward, 2 * copies + counts);
  EXPECT_EQ(expert_bytes(shape).backward, 2 * copies);
  shape.recompute = true;
  EXPECT_EQ(expert_bytes(shape).backward, 4 * copies + counts);
  shape.recompute = false;
  shape.tensor_ranks = 2;
  EXPECT_EQ(shape.experts(), 1);
  EXPECT_EQ(shape.copies_per_expert(), 64) << "its rank has the same tokens";
  EXPECT_EQ(expert_bytes(shape).total(), 2 * copies + counts / 2);
  shape.model.moe.capacity = 0.5;
  EXPECT_EQ(shape.copies_per_expert(), 32);
  EXPECT_EQ(expert_bytes(shape).backward, copies / 2);
  shape.model.moe.capacity = 2;
  EXPECT_EQ(expert_bytes(shape).backward, copies) << "no expert gets more than an even share";
}

/// What is counted in a sequence is summed by the ranks that split it.
TEST(ExpertFormulas, BytesOfCounts) {
  ExpertShape shape{.model = llama(), .context_axes = {2, 4}, .sequences = 8};
  EXPECT_EQ(shape.tokens(), 32);
  const double axes = 2 * 1. / 2 + 2 * 3. / 4;
  EXPECT_EQ(expert_bytes(shape).forward, axes * 4 * 8 * 8);
  EXPECT_EQ(expert_bytes(shape).backward, 0);
  shape.model.moe.capacity = 1;
  EXPECT_EQ(expert_bytes(shape).forward, axes * 4 * 8 * (8 + 32 * 2));
  shape.model.moe.capacity = 0;
  shape.model.moe.balance = BalanceScope::batch;
  EXPECT_EQ(expert_bytes(shape).forward, 0);
  EXPECT_EQ(balance_bytes_per_step(shape.model, 8), 2 * 7. / 8 * 3 * 8 * 8);
  EXPECT_EQ(balance_bytes_per_step(llama(), 8), 0);
}

TEST(ExpertFormulas, OneRankSendsNothing) {
  EXPECT_EQ(expert_bytes({.model = llama()}).total(), 0);
  ModelConfig dense = llama();
  dense.moe = {};
  EXPECT_EQ(expert_bytes({.model = dense, .ranks = 4, .context_axes = {2}}).total(), 0);
}

/// Activations fall with the ranks that split tokens; micro-batches are a multiple of them.
TEST(ExpertFormulas, OfMemory) {
  const MemoryShape whole = shape_of(llama(), 1);
  const double alone = layer_activation_bytes(whole);
  const double k = 2, h = 64, hidden = 3 * 96, shared = 3 * 40;
  const double elements = 6 * h + 2 * 32 + 8 + k * h + k * (h + hidden) + shared + h + 1;
  const double statistics = 4. * (4 + 8) + 12 * k + 16 * k;
  EXPECT_EQ(alone, 8. * 32 * (4 * elements + statistics) + 4 * 8 * 8);
  for (const int64_t ep : {2, 4}) {
    const MemoryShape part = shape_of(llama(), ep);
    const auto n = static_cast<double>(ep);
    EXPECT_EQ(layer_activation_bytes(part), alone / n + 8. * 32 / n * k * 16) << "received copies have places too";
    EXPECT_EQ(full_activation_bytes(part), full_activation_bytes(whole) / n);
  }
  const ModelConfig model = llama();
  EXPECT_EQ(feed_activation_elements(model, 1) - feed_activation_elements(model, 2), (k * (h + hidden) + shared) / 2);
  EXPECT_EQ(model.flops_per_token(32), shape_of(model, 4).model.flops_per_token(32));
}

TEST(ExpertFormulas, GridsHaveNoTable) {
  EXPECT_EQ(misfit_of({.model = llama(), .kind = "2d", .ranks = 4}), "2d has no table for experts");
  EXPECT_EQ(misfit_of({.model = llama(), .kind = "1d", .ranks = 8}), "");
  for (const TensorCost& cost : compare_tensor_kinds({.model = llama(), .ranks = 8})) {
    const std::string& kind = cost.shape.kind;
    EXPECT_EQ(cost.misfit, kind == "1d" ? "" : kind + " has no table for experts");
  }
  ModelConfig odd = llama();
  odd.moe.experts = 6;
  EXPECT_EQ(misfit_of({.model = odd, .kind = "1d", .ranks = 4}), "4 ranks do not divide 6 experts");
  EXPECT_EQ(misfit_of({.model = odd, .kind = "ring", .ranks = 4}), "");
}

}  // namespace
}  // namespace caravan::testing::expert_formulas_test
